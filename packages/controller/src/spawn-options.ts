import type { MaxForks } from '@forkd/protocol';
import type { Sandbox } from './sandbox.js';

export interface SpawnOptions {
  tag: string;
  n: number;
  /** Chosen by those who must know them before they exist. */
  ids?: string[];
  owner?: string;
  env?: Record<string, string>;
  metadata?: Record<string, string>;
  /** The `Idempotency-Key` of the request; children of one that was never answered are not kept after a crash. */
  requestKey?: string | undefined;
  /** Seconds until they end by themselves. */
  ttl?: number | undefined;
  memoryLimitMib?: number | null | undefined;
  cgroups?: string[];
  /** Of all that will be forked from each of them. */
  maxForks?: MaxForks | undefined;
  /** Goes on in the place of what was saved: no fork. */
  continues?: boolean;
  /** How many children are started at the same time. @default cores + 1 */
  width?: number;
  /** Called for each child as soon as it is ready, before the others are. */
  onReady?: (sandbox: Sandbox, index: number) => void;
  signal?: AbortSignal;
}

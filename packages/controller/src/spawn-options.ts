import type { EgressRules, ForkdError, Limits, MaxForks, NetworkPolicy } from '@forkd/protocol';
import type { Sandbox } from './sandbox.js';

export interface NetworkWish {
  policy: NetworkPolicy;
  /** @default those of the snapshot, if it has the same owner */
  rules?: EgressRules | undefined;
  /** It is meant to be more than the snapshot allows. */
  widen?: boolean;
}

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
  limits?: Limits;
  cgroups?: string[];
  /** Of all that will be forked from each of them. */
  maxForks?: MaxForks | undefined;
  /** Whether their processes may ask for branches. @default as that which the snapshot was taken of */
  guestBranch?: boolean | undefined;
  /** Where their connections may go. @default as the snapshot says */
  network?: NetworkWish | undefined;
  /** Goes on in the place of what was saved: no fork. */
  continues?: boolean;
  /** How many children are started at the same time. @default cores + 1 */
  width?: number;
  /** Called for each child as soon as it is ready, before the others are. */
  onReady?: (sandbox: Sandbox, index: number) => void;
  signal?: AbortSignal;
}

/** Children settle one by one: some may fail while others are fine. */
export type SpawnResult = { ok: true; sandbox: Sandbox } | { ok: false; error: ForkdError };

export interface Forking extends Omit<SpawnOptions, 'tag' | 'maxForks' | 'continues'> {
  /** Of the branch. */
  tag?: string | undefined;
  owner: string;
}

export interface Forked {
  tag: string;
  results: SpawnResult[];
}

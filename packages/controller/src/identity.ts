import { randomBytes } from 'node:crypto';
import type { Identity } from '@forkd/guest';
import type { SnapshotMeta } from './snapshot.js';

/** What makes a child its own: sent before anyone may use it, acknowledged by the agent or the child dies. */
export function identityOf(
  id: string,
  snapshot: SnapshotMeta,
  index: number,
  count: number,
  env: Record<string, string>,
  guestBranch = false,
): Identity {
  return {
    id,
    parent: snapshot.tag,
    index,
    count,
    time_unix_ns: (BigInt(Date.now()) * 1_000_000n).toString(),
    entropy: randomBytes(64).toString('base64'),
    hostname: id,
    env: { ...snapshot.env, ...env },
    guest_branch: guestBranch,
  };
}

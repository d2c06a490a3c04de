import { ownAddresses, widening } from '@forkd/egress';
import { type EgressRules, ForkdError, type NetworkPolicy } from '@forkd/protocol';
import type { SnapshotMeta } from './snapshot.js';
import type { NetworkWish } from './spawn-options.js';
import type { RulesRecord, SandboxRecord } from './store/records.js';
import type { Store } from './store/store.js';

/** Of new sandboxes: what is wished for, else that of the snapshot, else that of the daemon. More than the snapshot's must be said. */
export function policyOf(snapshot: SnapshotMeta, wish: NetworkWish | undefined, fallback: NetworkPolicy) {
  const policy = wishedPolicy(snapshot, wish, fallback);
  checkWire(snapshot, policy);
  return policy;
}

/** Where nothing leads out, nobody shall believe that something did. */
export function checkWire({ tag, network }: SnapshotMeta, { preset, allow }: NetworkPolicy): void {
  if (network?.backend !== 'user' || (preset === 'none' && allow.length === 0)) return;
  throw new ForkdError('host_unfit', `snapshot ${tag} was made without a tap: its sandboxes can reach nothing`, {
    hint: 'Ask for {"network": {"preset": "none"}}; or see `forkd doctor`, and create the snapshot again where a tap can be made.',
  });
}

function wishedPolicy({ tag, policy }: SnapshotMeta, wish: NetworkWish | undefined, fallback: NetworkPolicy) {
  if (!wish) return policy ?? fallback;
  const more = policy && !wish.widen ? widening(wish.policy, policy, ownAddresses()) : undefined;
  if (more === undefined) return wish.policy;
  throw new ForkdError('invalid_request', `network: ${more}: more than the sandboxes of snapshot ${tag} may reach`, {
    hint: 'Ask for less, or say that it is meant with "widen": true.',
    details: { more, policy },
  });
}

/** What is set for new sandboxes. Secrets of a snapshot are for children of the same owner only. */
export function rulesOf(
  store: Store,
  { tag }: SnapshotMeta,
  records: SandboxRecord[],
  wish: NetworkWish | undefined,
): RulesRecord[] {
  const inherited = wish?.rules ? undefined : store.rules(ofSnapshot(tag));
  return records.flatMap(({ id, owner }) => {
    const rules: EgressRules = wish?.rules ?? (inherited?.owner === owner ? inherited.rules : {});
    return Object.keys(rules).length > 0 ? [{ subject: id, owner, rules }] : [];
  });
}

/** A branch keeps what was set for the sandbox it was taken of. */
export function keepRules(store: Store, id: string, tag: string): void {
  const record = store.rules(id);
  if (record) store.setRules({ ...record, subject: ofSnapshot(tag) });
}

function ofSnapshot(tag: string): string {
  return `tag:${tag}`;
}

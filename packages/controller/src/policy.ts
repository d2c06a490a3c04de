import { ownAddresses, widening } from '@forkd/egress';
import { type EgressRules, ForkdError, type NetworkPolicy, type NetworkPreset } from '@forkd/protocol';
import type { Parts } from './parts.js';
import type { SnapshotMeta } from './snapshot.js';
import type { NetworkWish } from './spawn-options.js';
import type { RulesRecord, SandboxRecord } from './store/records.js';
import type { Store } from './store/store.js';

/** Of new sandboxes: what is wished for, else that of the snapshot, else that of the daemon. */
export function policyOf(
  { policy: fallback, ceilingOf }: Pick<Parts, 'policy' | 'ceilingOf'>,
  snapshot: SnapshotMeta,
  wish: NetworkWish | undefined,
  owner: string,
): NetworkPolicy {
  const ceiling = ceilingOf(owner);
  const policy = wishedPolicy(snapshot, wish, lowered(fallback, ceiling));
  checkWire(snapshot, policy);
  checkCeiling(owner, policy, ceiling);
  return policy;
}

/** What a token may open, whoever asks for it. */
export function checkCeiling(owner: string, policy: NetworkPolicy, ceiling: NetworkPreset | undefined): void {
  const more = ceiling && widening(policy, only(ceiling), ownAddresses());
  if (more === undefined) return;
  throw new ForkdError('quota_exceeded', `network: ${more}: more than sandboxes of ${owner} may reach (${ceiling})`, {
    hint: 'Ask for less, or have `network` of this token raised in the tokens file of the daemon.',
    details: { quota: 'network', most: ceiling, more },
  });
}

/** What nobody has asked for is no reason to refuse anybody. */
function lowered(policy: NetworkPolicy, ceiling: NetworkPreset | undefined): NetworkPolicy {
  if (ceiling === undefined || widening(policy, only(ceiling), ownAddresses()) === undefined) return policy;
  const isNarrower = widening(only(policy.preset), only(ceiling)) === undefined;
  return { preset: isNarrower ? policy.preset : ceiling, allow: [], deny: policy.deny };
}

function only(preset: NetworkPreset): NetworkPolicy {
  return { preset, allow: [], deny: [] };
}

/** Where nothing leads out, nobody shall believe that something did. */
export function checkWire({ tag, network }: SnapshotMeta, { preset, allow }: NetworkPolicy): void {
  if (network?.backend !== 'user' || (preset === 'none' && allow.length === 0)) return;
  throw new ForkdError('host_unfit', `snapshot ${tag} was made without a tap: its sandboxes can reach nothing`, {
    hint: 'Ask for {"network": {"preset": "none"}}; or see `forkd doctor`, and create the snapshot again where a tap can be made.',
  });
}

/** More than the snapshot's must be said. */
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

/** A snapshot keeps what was set for the sandbox it was taken of, or for the snapshot it is a copy of. */
export function keepRules(store: Store, subject: string, tag: string): void {
  const record = store.rules(subject);
  if (record) store.setRules({ ...record, subject: ofSnapshot(tag) });
}

export function ofSnapshot(tag: string): string {
  return `tag:${tag}`;
}

import { type NetworkPolicy, newSandboxId } from '@forkd/protocol';
import { budgetOf } from './budget.js';
import { now } from './clock.js';
import type { SandboxLimits } from './limits/settings.js';
import type { SnapshotMeta } from './snapshot.js';
import { LOCAL_OWNER } from './snapshots.js';
import type { SpawnOptions } from './spawn-options.js';
import type { SandboxRecord } from './store/records.js';

export interface Surroundings {
  /** Where the spawn says nothing. */
  defaults: SandboxLimits;
  diskMib: number;
  policy: NetworkPolicy;
}

/** Of a sandbox that is about to be started. */
export function newRecord(
  snapshot: SnapshotMeta,
  options: SpawnOptions,
  index: number,
  { defaults, diskMib, policy }: Surroundings,
): SandboxRecord {
  const { tag, machine, budget } = snapshot;
  const { memory_limit_mib = null, ...limits } = defaults;
  const guestBranch = options.guestBranch ?? snapshot.guest_branch;
  const id = options.ids?.[index] ?? newSandboxId();
  return {
    id,
    place: id,
    snapshot_tag: tag,
    owner: options.owner ?? LOCAL_OWNER,
    state: 'starting',
    pid: null,
    start_time: null,
    created_at: now(),
    expires_at: options.ttl === undefined ? null : now() + options.ttl,
    ended_at: null,
    exit_reason: null,
    request_key: options.requestKey ?? null,
    promoted_from: null,
    metadata: options.metadata ?? {},
    memory_limit_mib: options.memoryLimitMib ?? memory_limit_mib,
    limits: { ...limits, ...options.limits },
    env: options.env ?? {},
    branch_count: 0,
    last_branch: null,
    budget: options.continues ? budget : budgetOf(id, budget, options.maxForks, guestBranch),
    guest_branch: guestBranch ? 1 : 0,
    policy,
    vcpus: machine.vcpus,
    memory_mib: machine.memoryMib,
    disk_mib: diskMib,
  };
}

import type { SandboxRecord } from '@forkd/controller';
import { GUEST_ADDR, type MaxForks, type SandboxInfo } from '@forkd/protocol';

/** A sandbox as the API shows it. */
export function sandboxInfo(record: SandboxRecord): SandboxInfo {
  return {
    id: record.id,
    snapshot_tag: record.snapshot_tag,
    netns: null,
    guest_addr: GUEST_ADDR,
    created_at_unix: record.created_at,
    pid: record.state === 'exited' ? null : record.pid,
    memory_limit_mib: record.memory_limit_mib,
    ...record.limits,
    has_branched: record.branch_count > 0,
    last_branch_memory_path: null,
    branch_count: record.branch_count,
    state: record.state,
    owner: record.owner,
    metadata: record.metadata,
    expires_at_unix: record.expires_at,
    vcpus: record.vcpus,
    memory_mib: record.memory_mib,
    disk_mib: record.disk_mib,
    network: record.policy,
    ...(record.budget && { max_forks: maxForks(record.budget) }),
    ...(record.guest_branch === 1 && { guest_branch: true }),
    ...(record.promoted_from !== null && { promoted_from: record.promoted_from }),
    exit_reason: record.exit_reason,
  };
}

function maxForks({ count, depth, bytes }: NonNullable<SandboxRecord['budget']>): MaxForks {
  return { ...(count !== null && { count }), ...(depth !== null && { depth }), ...(bytes !== null && { bytes }) };
}

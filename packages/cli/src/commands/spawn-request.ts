import type { Limits } from '@forkd/protocol';
import type { SpawnOptions } from '@forkd/sdk';
import type { Values } from '../command.js';
import { usage } from '../usage.js';
import type { SPAWN } from './flags.js';
import { networkRequest } from './network-request.js';

type Request = Omit<SpawnOptions, 'snapshot_tag' | 'n' | 'signal'>;

/** What the flags of a spawn ask the daemon for. */
export function spawnRequest(flags: Values<typeof SPAWN>): Request {
  if (flags.hugepages && !flags['live-fork']) throw usage('--hugepages needs --live-fork');
  const ttl = flags['ttl-secs'];
  const network = networkRequest(flags);
  return {
    per_child_netns: flags['per-child-netns'],
    live_fork: flags['live-fork'],
    hugepages: flags.hugepages,
    prewarm: flags.prewarm,
    env: Object.fromEntries(flags.env),
    metadata: Object.fromEntries(flags.label),
    ...limitsIn(flags),
    ...(ttl !== undefined && { ttl_secs: ttl }),
    ...(flags['guest-branch'] && { guest_branch: true }),
    ...(network && { network: { ...network, widen: flags.widen } }),
  };
}

const LIMITS = [
  ...(['memory-limit-mib', 'cpu-limit', 'cpu-weight', 'pids-limit'] as const),
  ...(['read-bps-limit', 'write-bps-limit', 'read-iops-limit', 'write-iops-limit'] as const),
];

/** Flags and fields have the same names, written differently. */
function limitsIn(flags: Values<typeof SPAWN>): Pick<Request, 'memory_limit_mib'> & Limits {
  const given = LIMITS.filter((name) => flags[name] !== undefined);
  return Object.fromEntries(given.map((name) => [name.replaceAll('-', '_'), flags[name]]));
}

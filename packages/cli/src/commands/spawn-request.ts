import type { SpawnOptions } from '@forkd/sdk';
import type { Values } from '../command.js';
import { usage } from '../usage.js';
import type { SPAWN } from './flags.js';

type Request = Omit<SpawnOptions, 'snapshot_tag' | 'n' | 'signal'>;

/** What the flags of a spawn ask the daemon for. */
export function spawnRequest(flags: Values<typeof SPAWN>): Request {
  if (flags.hugepages && !flags['live-fork']) throw usage('--hugepages needs --live-fork');
  const limit = flags['memory-limit-mib'];
  const ttl = flags['ttl-secs'];
  return {
    per_child_netns: flags['per-child-netns'],
    live_fork: flags['live-fork'],
    hugepages: flags.hugepages,
    prewarm: flags.prewarm,
    env: Object.fromEntries(flags.env),
    metadata: Object.fromEntries(flags.label),
    ...(limit !== undefined && { memory_limit_mib: limit }),
    ...(ttl !== undefined && { ttl_secs: ttl }),
    ...(flags['guest-branch'] && { guest_branch: true }),
  };
}

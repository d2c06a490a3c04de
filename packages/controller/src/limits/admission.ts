import { readFileSync } from 'node:fs';
import { ForkdError } from '@forkd/protocol';
import type { SandboxRecord } from '../store/records.js';
import type { Store, Usage } from '../store/store.js';

/** What one owner may have at one time, and how fast it may come. */
export interface Quota {
  max_sandboxes?: number | undefined;
  max_memory_mib?: number | undefined;
  max_cpus?: number | undefined;
  max_disk_mib?: number | undefined;
  spawns_per_minute?: number | undefined;
}

export interface AdmissionOptions {
  /** How much more may be promised to sandboxes than there is: children share what they have not written. 0: anything. */
  overcommit?: number;
  /** `undefined`: no limits. */
  quotaOf?: (owner: string) => Quota | undefined;
}

/** Beside guest RAM: the emulator itself. */
const VMM_MIB = 32;
/** Kept for the host: a share of its memory, but no more than this. */
const RESERVE_SHARE = 0.05;
const RESERVE_MIB = 512;

const QUOTAS = [
  ['max_sandboxes', 'count', 'sandboxes'],
  ['max_memory_mib', 'memory_mib', 'MiB of memory'],
  ['max_cpus', 'cpus', 'CPUs'],
  ['max_disk_mib', 'disk_mib', 'MiB of disk'],
] as const;

/** Decides whether more sandboxes may exist, in the same step in which their records are made. */
export class Admission {
  readonly #overcommit: number;
  readonly #quotaOf: (owner: string) => Quota | undefined;
  readonly #buckets = new Map<string, { left: number; at: number }>();

  constructor(
    private readonly store: Store,
    { overcommit = 0, quotaOf = () => undefined }: AdmissionOptions = {},
  ) {
    this.#overcommit = overcommit;
    this.#quotaOf = quotaOf;
  }

  check(records: SandboxRecord[]): void {
    const [first] = records;
    if (!first) return;
    const wanted = sum(records);
    const quota = this.#quotaOf(first.owner);
    if (quota) this.#checkQuota(first.owner, quota, wanted);
    if (this.#overcommit > 0) this.#checkRoom(wanted);
    // Last: who is refused has not used it up.
    if (quota?.spawns_per_minute !== undefined) this.#checkRate(first.owner, quota.spawns_per_minute, records.length);
  }

  /** How large it will be is not known: who has used up their disk makes no more. */
  checkSnapshot(owner: string): void {
    const most = this.#quotaOf(owner)?.max_disk_mib;
    if (most === undefined) return;
    const used = this.store.usage(owner).disk_mib;
    if (used < most) return;
    throw new ForkdError('quota_exceeded', `${owner} may have ${most} MiB of disk, and has ${used}`, {
      details: { quota: 'max_disk_mib', most, used },
    });
  }

  #checkQuota(owner: string, quota: Quota, wanted: Usage): void {
    const used = this.store.usage(owner);
    for (const [name, field, what] of QUOTAS) {
      const most = quota[name];
      if (most === undefined || used[field] + wanted[field] <= most) continue;
      throw new ForkdError(
        'quota_exceeded',
        `${owner} may have ${most} ${what}, has ${used[field]} and wants ${wanted[field]} more`,
        {
          details: { quota: name, most, used: used[field], wanted: wanted[field] },
        },
      );
    }
  }

  #checkRoom(wanted: Usage): void {
    const { total, available } = hostMemory();
    const reserve = Math.min(RESERVE_MIB, total * RESERVE_SHARE);
    const promised = (usage: Usage): number => (usage.memory_mib + usage.count * VMM_MIB) / this.#overcommit;
    const more = promised(wanted);
    if (more <= available - reserve && promised(this.store.usage()) + more <= total - reserve) return;
    throw new ForkdError(
      'host_full',
      `this host has no room for ${wanted.count} more sandboxes of ${Math.round(wanted.memory_mib / wanted.count)} MiB`,
    );
  }

  #checkRate(owner: string, perMinute: number, n: number): void {
    if (n > perMinute)
      throw new ForkdError('quota_exceeded', `${owner} may start ${perMinute} sandboxes a minute, not ${n} at once`);
    const now = performance.now() / 1000;
    const { left, at } = this.#buckets.get(owner) ?? { left: perMinute, at: now };
    const filled = Math.min(perMinute, left + ((now - at) * perMinute) / 60);
    const allowed = filled >= n;
    this.#buckets.set(owner, { left: allowed ? filled - n : filled, at: now });
    if (allowed) return;
    throw new ForkdError('rate_limited', `${owner} may start ${perMinute} sandboxes a minute`, {
      details: { retry_after_secs: Math.ceil(((n - filled) * 60) / perMinute) },
    });
  }
}

function sum(records: SandboxRecord[]): Usage {
  const total = (of: (record: SandboxRecord) => number): number => records.reduce((all, record) => all + of(record), 0);
  return {
    count: records.length,
    memory_mib: total(({ memory_limit_mib, memory_mib }) => memory_limit_mib ?? memory_mib),
    cpus: total(({ limits, vcpus }) => limits.cpu_limit ?? vcpus),
    disk_mib: total(({ disk_mib }) => disk_mib),
  };
}

/** Of the host, in MiB. */
export function hostMemory(): { total: number; available: number } {
  const text = readFileSync('/proc/meminfo', 'utf8');
  const field = (name: string): number => Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(text)?.[1]) / 1024;
  return { total: field('MemTotal'), available: field('MemAvailable') };
}

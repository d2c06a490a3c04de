import type { Limits } from '@forkd/protocol';
import type { SandboxRecord } from '../store/records.js';

/** All that may be limited. */
export interface SandboxLimits extends Limits {
  memory_limit_mib?: number | null | undefined;
}

/** Those in a record. */
export function limitsOf({ limits, memory_limit_mib }: SandboxRecord): SandboxLimits {
  return { ...limits, memory_limit_mib };
}

export type Resource = 'memory' | 'cpu' | 'pids' | 'io';

interface Setting {
  file: string;
  value: string;
  /** Whether it is only about swap. */
  swap?: true;
}

/** The name of a resource's controller, by version. */
export const CONTROLLERS: Record<Resource, Record<1 | 2, string>> = {
  memory: { 1: 'memory', 2: 'memory' },
  cpu: { 1: 'cpu', 2: 'cpu' },
  pids: { 1: 'pids', 2: 'pids' },
  io: { 1: 'blkio', 2: 'io' },
};

const PERIOD_US = 100_000;
/** Version 1 counts the same weight in other units. */
const SHARES_PER_WEIGHT = 10.24;

const IO_FILES = {
  read_bps_limit: { 1: 'blkio.throttle.read_bps_device', 2: 'rbps' },
  write_bps_limit: { 1: 'blkio.throttle.write_bps_device', 2: 'wbps' },
  read_iops_limit: { 1: 'blkio.throttle.read_iops_device', 2: 'riops' },
  write_iops_limit: { 1: 'blkio.throttle.write_iops_device', 2: 'wiops' },
} as const;
const IO_LIMITS = Object.keys(IO_FILES) as (keyof typeof IO_FILES)[];

/** What is limited at all. */
export function resourcesOf(limits: SandboxLimits): Resource[] {
  const wanted: Resource[] = [];
  if (limits.memory_limit_mib != null) wanted.push('memory');
  if (limits.cpu_limit !== undefined || limits.cpu_weight !== undefined) wanted.push('cpu');
  if (limits.pids_limit !== undefined) wanted.push('pids');
  if (IO_LIMITS.some((name) => limits[name] !== undefined)) wanted.push('io');
  return wanted;
}

/** What is to be written for one resource into which file. `device`: MAJOR:MINOR of the disk. */
export function settingsOf(resource: Resource, limits: SandboxLimits, version: 1 | 2, device: () => string): Setting[] {
  const set = (file: string, value: string | number): Setting => ({ file, value: String(value) });
  const { memory_limit_mib: mib, cpu_limit: cpus, cpu_weight: weight, pids_limit: pids } = limits;
  switch (resource) {
    case 'memory': {
      const bytes = (mib ?? 0) * 2 ** 20;
      // What is swapped out was used too: version 1 counts both together.
      if (version === 2) return [set('memory.max', bytes), { ...set('memory.swap.max', 0), swap: true }];
      return [set('memory.limit_in_bytes', bytes), { ...set('memory.memsw.limit_in_bytes', bytes), swap: true }];
    }
    case 'pids':
      return [set('pids.max', pids ?? 'max')];
    case 'cpu': {
      const quota = cpus === undefined ? undefined : Math.max(1_000, Math.round(cpus * PERIOD_US));
      if (version === 2)
        return [
          ...(quota === undefined ? [] : [set('cpu.max', `${quota} ${PERIOD_US}`)]),
          ...(weight === undefined ? [] : [set('cpu.weight', weight)]),
        ];
      return [
        ...(quota === undefined ? [] : [set('cpu.cfs_period_us', PERIOD_US), set('cpu.cfs_quota_us', quota)]),
        ...(weight === undefined ? [] : [set('cpu.shares', Math.max(2, Math.round(weight * SHARES_PER_WEIGHT)))]),
      ];
    }
    case 'io': {
      const given = IO_LIMITS.filter((name) => limits[name] !== undefined);
      if (version === 1) return given.map((name) => set(IO_FILES[name][1], `${device()} ${limits[name]}`));
      return [set('io.max', `${device()} ${given.map((name) => `${IO_FILES[name][2]}=${limits[name]}`).join(' ')}`)];
    }
  }
}

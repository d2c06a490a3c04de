import { expect, it } from 'vitest';
import { resourcesOf, type SandboxLimits, settingsOf } from './settings.js';

const ALL: SandboxLimits = {
  memory_limit_mib: 64,
  cpu_limit: 0.5,
  cpu_weight: 200,
  pids_limit: 100,
  read_bps_limit: 4096,
  write_iops_limit: 7,
};

function written(limits: SandboxLimits, version: 1 | 2): Record<string, string> {
  const settings = resourcesOf(limits).flatMap((resource) => settingsOf(resource, limits, version, () => '8:0'));
  return Object.fromEntries(settings.map(({ file, value }) => [file, value]));
}

it('every limit has its file in either version', () => {
  expect(written(ALL, 2)).toEqual({
    'memory.max': '67108864',
    'memory.swap.max': '0',
    'cpu.max': '50000 100000',
    'cpu.weight': '200',
    'pids.max': '100',
    'io.max': '8:0 rbps=4096 wiops=7',
  });
  expect(written(ALL, 1)).toEqual({
    'memory.limit_in_bytes': '67108864',
    'memory.memsw.limit_in_bytes': '67108864',
    'cpu.cfs_period_us': '100000',
    'cpu.cfs_quota_us': '50000',
    'cpu.shares': '2048',
    'pids.max': '100',
    'blkio.throttle.read_bps_device': '8:0 4096',
    'blkio.throttle.write_iops_device': '8:0 7',
  });
});

it('what is not limited needs no cgroup', () => {
  expect(resourcesOf({})).toEqual([]);
  expect(resourcesOf({ memory_limit_mib: null, cpu_weight: 1 })).toEqual(['cpu']);
});

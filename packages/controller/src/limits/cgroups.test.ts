import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { newSandboxId } from '@forkd/protocol';
import { afterAll, expect, it } from 'vitest';
import { Cgroups } from './cgroups.js';
import { hierarchies } from './hierarchies.js';

const own = mkdtempSync(`${tmpdir()}/forkd-cgroups-`);
afterAll(() => rmSync(own, { recursive: true }));

it('every limit is really written, and nothing is left of it', async () => {
  const cgroups = new Cgroups(own);
  const place = newSandboxId();
  const limits = { memory_limit_mib: 64, cpu_limit: 0.5, cpu_weight: 200, pids_limit: 100, write_bps_limit: 1 << 20 };
  const made = await cgroups.make(place, limits);
  const read = (...names: string[]): string[] =>
    made
      .flatMap((group) => names.map((name) => `${group}/${name}`).filter(existsSync))
      .map((file) => readFileSync(file, 'utf8').trim());
  expect(read('memory.max', 'memory.limit_in_bytes')).toEqual([String(64 << 20)]);
  expect(read('cpu.max', 'cpu.cfs_quota_us')[0]).toMatch(/^50000/);
  expect(read('pids.max')).toEqual(['100']);
  expect(read('io.max', 'blkio.throttle.write_bps_device')[0]).toMatch(/^\d+:\d+ .*1048576/);
  expect(await cgroups.ranOutOfMemory(place)).toBe(false);
  await cgroups.remove(place);
  expect(made.filter(existsSync)).toEqual([]);
  await cgroups.make(place, limits);
  await cgroups.sweep(new Set());
  expect(made.filter(existsSync)).toEqual([]);
});

it('a limit that cannot be applied refuses the sandbox, and leaves nothing; unless it may run without', async () => {
  const place = newSandboxId();
  const some = hierarchies().filter(({ controllers }) => !controllers.includes('pids'));
  const wanted = { memory_limit_mib: 64, pids_limit: 100 };
  for (const lacking of [[], [{ version: 1 as const, path: `${own}/none`, controllers: ['pids'] }], some]) {
    const cgroups = new Cgroups(own, { hierarchies: lacking });
    await expect(cgroups.make(place, wanted)).rejects.toMatchObject({
      code: 'host_unfit',
      hint: expect.stringContaining('--allow-unlimited'),
    });
    await cgroups.sweep(new Set());
  }
  const lenient = new Cgroups(own, { hierarchies: some, allowUnlimited: true });
  const made = await lenient.make(place, wanted);
  expect(made.every(existsSync)).toBe(true);
  await lenient.remove(place);
  // A file that only looks like a cgroup is none.
  mkdirSync(`${own}/pids`);
  const fake = new Cgroups(own, { hierarchies: [{ version: 1, path: `${own}/pids`, controllers: ['pids'] }] });
  await expect(fake.make(place, { pids_limit: 16 })).rejects.toMatchObject({ code: 'host_unfit' });
});

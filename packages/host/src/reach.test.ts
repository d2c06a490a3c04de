import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { afterAll, expect, it } from 'vitest';
import type { JailSpec } from './helper-protocol.js';
import { HostHelper, type HostProcess } from './host-helper.js';
import { spawnSpec, temporaryDirectory } from './testing.js';

const root = temporaryDirectory();
const data = `${root}/data`;
const vm = `${data}/run/vm`;
const [SECRET, OUTSIDE] = [`${root}/secret`, `${root}/outside`];
for (const directory of [vm, `${data}/run/copy`, OUTSIDE]) mkdirSync(directory, { recursive: true });
for (const file of [SECRET, `${vm}/disk`, `${OUTSIDE}/disk`]) writeFileSync(file, 'x'.repeat(4096));
symlinkSync(OUTSIDE, `${data}/way-out`);
symlinkSync(SECRET, `${vm}/link`);
symlinkSync('run', `${data}/way-in`);

const helper = HostHelper.start('', { within: [data], read: ['/bin/sleep', '/usr/bin/sleep', '/etc/ld.so.cache'] });
afterAll(() => helper[Symbol.asyncDispose]());

/** None of them may be read. `NAME`: a file that is there. */
const HOSTILE = [
  SECRET,
  '/etc/shadow',
  `${data}/../secret`,
  `${vm}/../../../secret`,
  `${vm}/../vm/disk`,
  `${vm}//disk`,
  `${vm}/link`,
  `${data}/way-out/disk`,
  `${data}/way-in/vm/disk`,
  `/proc/self/root${SECRET}`,
  `/proc/${process.pid}/root${vm}/disk`,
  `/proc/${process.pid}/cwd`,
  '/dev/fd/0',
  'disk',
  '',
];

/** Nothing may be made there. */
const PLACES = [
  `${root}/new`,
  `${data}/../new`,
  `${data}/way-out/new`,
  `${data}/way-in/vm/new`,
  `${vm}/..`,
  'new',
  '/new',
];

const REFUSED = { code: 'host_unfit', hint: expect.stringContaining('data directory') };
const nobody = { pid: process.pid, startTime: 1 };
const sleeps = (changes = {}, log = `${vm}/log`): Promise<HostProcess> =>
  helper.spawn(spawnSpec(log, ['/bin/sleep', '60'], changes));
const jail = (changes: Partial<JailSpec>): { jail: JailSpec } => ({
  jail: { uids: { first: 300_000, last: 300_100 }, directory: vm, read: [], write: [], devices: [], ...changes },
});

it.each(HOSTILE)('is not read, run or given away: %s', async (path) => {
  const saved = { memory: `${vm}/disk` };
  const attempts = [
    helper.cloneFile(path, `${vm}/stolen`),
    helper.inject(nobody, path, `${vm}/disk`),
    helper.inject(nobody, `${vm}/disk`, path),
    helper.capture(nobody, path, `${vm}/stolen`),
    helper.twin(nobody, path),
    helper.compare(saved, { memory: path }),
    helper.compare({ ...saved, diff: path }, saved),
    helper.forkVmm(nobody, { from: path, to: vm, orders: {}, tied: true, cgroups: [] }),
    helper.forkVmm(nobody, { from: vm, to: path, orders: {}, tied: true, cgroups: [] }),
    helper.spawn(spawnSpec(`${vm}/log`, [path])),
    sleeps({ open: [{ name: 'state', path }] }),
    sleeps({ cgroups: [path] }),
    sleeps(jail({ read: [path] })),
    sleeps(jail({ write: [path] })),
    sleeps(jail({ directory: path })),
    sleeps(jail({ devices: [path] })),
  ];
  for (const { reason } of (await Promise.allSettled(attempts)) as PromiseRejectedResult[])
    expect(reason).toMatchObject(REFUSED);
  expect(existsSync(`${vm}/stolen`)).toBe(false);
});

it.each(PLACES)('nothing is made at %s', async (path) => {
  const attempts = [
    helper.cloneFile(`${vm}/disk`, path),
    helper.capture(nobody, `${vm}/disk`, path),
    helper.guard(nobody, path, ['{}']),
    sleeps({}, path),
    sleeps({ listen: [{ name: 'qmp', path }] }),
  ];
  for (const { reason } of (await Promise.allSettled(attempts)) as PromiseRejectedResult[])
    expect(reason).toMatchObject(REFUSED);
  expect([`${root}/new`, `${OUTSIDE}/new`, '/new'].filter(existsSync)).toEqual([]);
});

it('a program joins no group but those of sandboxes, and has no device that is not for VMMs', async () => {
  const mounts = readFileSync('/proc/self/mounts', 'utf8').split('\n');
  const hierarchies = mounts.filter((line) => / cgroup2? /.test(line)).map((line) => line.split(' ')[1]!);
  for (const path of hierarchies.flatMap((place) => [place, `${place}/forkd/..`, `${place}/other`]))
    await expect(sleeps({ cgroups: [path] })).rejects.toMatchObject(REFUSED);
  for (const device of ['/dev/mem', '/dev/kmsg', '/dev/../dev/null', tmpdir()])
    await expect(sleeps(jail({ devices: [device] }))).rejects.toMatchObject(REFUSED);
});

it('what lies in its directories, and what it may read, is used', async () => {
  await helper.cloneFile(`${vm}/disk`, `${data}/run/copy/disk`);
  expect(readFileSync(`${data}/run/copy/disk`, 'utf8')).toBe('x'.repeat(4096));
  await expect(helper.cloneFile('/etc/ld.so.cache', `${vm}/cache`)).resolves.toBeDefined();
  await expect(helper.cloneFile(`${vm}/disk`, '/etc/ld.so.cache')).rejects.toMatchObject(REFUSED);
  const child = await sleeps({ listen: [{ name: 'qmp', path: `${vm}/qmp.sock` }] });
  await child.kill();
  const named = await helper.spawn(spawnSpec(`${vm}/log`, ['sleep', '60']));
  await named.kill();
  await expect(helper.spawn(spawnSpec(`${vm}/log`, ['sh']))).rejects.toMatchObject(REFUSED);
});

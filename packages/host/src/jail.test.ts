import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { afterAll, expect, it } from 'vitest';
import type { JailSpec } from './helper-protocol.js';
import { HostHelper, type HostProcess } from './host-helper.js';
import { gone, isAlive, spawnSpec, temporaryDirectory } from './testing.js';

const root = temporaryDirectory();
const helper = HostHelper.start();
afterAll(() => helper[Symbol.asyncDispose]());

const SLEEP = '/usr/bin/sleep';
const LIBRARIES = [...execFileSync('ldd', [SLEEP], { encoding: 'utf8' }).matchAll(/(\/\S+) \(0x/g)].map(
  ([, path]) => path!,
);
/** Of this test alone, so that it can count on all of them being free. */
const FIRST = 400_000 + (process.pid % 10_000) * 10;

let next = 0;
function jail(changes: Partial<JailSpec> = {}): JailSpec {
  const directory = `${root}/${next++}`;
  mkdirSync(directory);
  const uids = { first: FIRST, last: FIRST + 3 };
  return { uids, directory, read: [SLEEP, ...LIBRARIES], write: [], devices: [], ...changes };
}

function sleeps(spec = jail(), of = helper, changes = {}): Promise<HostProcess> {
  return of.spawn(spawnSpec(`${spec.directory}/log`, [SLEEP, '60'], { jail: spec, ...changes }));
}

function uid({ pid }: HostProcess): number {
  return Number(/^Uid:\s(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]);
}

it('no two that live are the same user, also of different helpers; one that ended makes room', async () => {
  const other = HostHelper.start();
  const living = [await sleeps(), await sleeps(undefined, other), await sleeps(), await sleeps(undefined, other)];
  expect(new Set(living.map(uid)).size).toBe(4);
  for (const user of living.map(uid)) expect(user - FIRST).toBeLessThan(4);
  await expect(sleeps()).rejects.toMatchObject({ code: 'host_unfit', message: expect.stringContaining('are in use') });
  const freed = uid(living[1]!);
  await living[1]!.kill();
  await living[1]!.exited;
  const last = await sleeps();
  expect(uid(last)).toBe(freed);
  for (const { kill, exited } of [...living, last]) await kill().then(() => exited);
  await other[Symbol.asyncDispose]();
});

it('its directory and what it may write become its own', async () => {
  const spec = jail();
  writeFileSync(`${spec.directory}/disk`, '');
  const child = await sleeps({ ...spec, write: [`${spec.directory}/disk`] });
  for (const path of [spec.directory, `${spec.directory}/disk`]) expect(statSync(path).uid).toBe(uid(child));
  await child.kill().then(() => child.exited);
});

it('one that is tied ends with its helper, though it became another user', async () => {
  const own = HostHelper.start();
  const [tied, untied] = [await sleeps(undefined, own), await sleeps(undefined, own, { tied: false })];
  process.kill(own.pid!, 'SIGKILL');
  expect(await gone(tied.pid, 2000)).toBe(true);
  expect(isAlive(untied.pid)).toBe(true);
  process.kill(untied.pid, 'SIGKILL');
  await own[Symbol.asyncDispose]();
});

it('what cannot be jailed does not start: the host is unfit, with a hint, and nothing is left', async () => {
  const link = `${root}/link`;
  symlinkSync(SLEEP, link);
  const bad: Partial<JailSpec>[] = [
    { uids: { first: 0, last: 65_535 } },
    { uids: { first: 5000, last: 4000 } },
    { read: ['/no/such/file'] },
    { read: [`${root}/../${root}/link`] },
    { read: ['relative'] },
    { read: ['/'] },
    { write: ['/no/such/file'] },
    { write: [link] },
    { devices: ['/dev/no-such-device'] },
    { directory: `${root}/absent` },
  ];
  for (const changes of bad) {
    const spec = jail(changes);
    const socket = `${root}/socket-${next}`;
    const listen = [{ name: 'socket', path: socket }];
    const spawned = helper.spawn(spawnSpec(`${root}/log`, [SLEEP, '60'], { jail: spec, listen }));
    await expect(spawned, JSON.stringify(changes)).rejects.toMatchObject({
      code: 'host_unfit',
      hint: expect.stringContaining('--no-jail'),
    });
    expect(existsSync(socket)).toBe(false);
  }
});

it('a program that is not in its jail is said not to start', async () => {
  const spec = jail();
  const spawned = helper.spawn(spawnSpec(`${spec.directory}/log`, ['/bin/true'], { jail: spec }));
  await expect(spawned).rejects.toThrow('start /bin/true: No such file or directory');
});

it('a helper that works for a directory gives away nothing outside of it', async () => {
  const owner = `${root}/owner`;
  mkdirSync(`${owner}/inside`, { recursive: true });
  symlinkSync(root, `${owner}/way-out`);
  const own = HostHelper.start(owner);
  for (const directory of [jail().directory, `${owner}/way-out/0`])
    await expect(sleeps(jail({ directory }), own)).rejects.toMatchObject({ code: 'host_unfit' });
  const child = await sleeps(jail({ directory: `${owner}/inside` }), own);
  expect(await child.kill()).toBe(true);
  await own[Symbol.asyncDispose]();
});

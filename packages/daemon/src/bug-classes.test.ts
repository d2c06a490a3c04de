import { readdirSync, readFileSync, renameSync, rmSync, symlinkSync } from 'node:fs';
import { dirname } from 'node:path';
import { Controller, processesUsing } from '@forkd/controller';
import { QemuEngine } from '@forkd/engine-qemu';
import { HostHelper } from '@forkd/host';
import { ROUTES, type Route, type SandboxInfo } from '@forkd/protocol';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Answer, plainRecipes, TestDaemon, temporaryData } from './testing.js';

/** What went wrong in forkd, class by class, as far as the daemon is concerned. Those not here are named in other tests. */
const root = temporaryData();
let daemon: TestDaemon;

beforeAll(async () => {
  daemon = await TestDaemon.start(['--recipes', plainRecipes(root)], root);
  expect((await say('POST', '/v1/snapshots', { tag: 'plain', recipe: 'plain' })).status).toBe(201);
});

afterAll(() => daemon.stop());

function say(method: string, path: string, body?: object, signal?: AbortSignal): Promise<Answer> {
  return daemon.call(path, { method, ...(body && { body: JSON.stringify(body) }), ...(signal && { signal }) });
}

async function spawn(n = 1): Promise<SandboxInfo[]> {
  const { status, body } = await say('POST', '/v1/sandboxes', { snapshot_tag: 'plain', n });
  expect(status, JSON.stringify(body)).toBe(201);
  return body;
}

function killAll(): Promise<void> {
  return daemon.killAll();
}

const CLIMBS = ['../x', '..', '.', 'a/b', '/etc', 'a\0b', '%2e%2e', 'a.b', ''];

it('class 1: no tag, wherever it is given, climbs out of its directory', async () => {
  const around = (): string[] => readdirSync(dirname(root)).filter((name) => name.startsWith(root.split('/').pop()!));
  const before = around();
  for (const tag of CLIMBS) {
    for (const [path, body] of [
      ['/v1/snapshots', { tag, recipe: 'plain' }],
      ['/v1/snapshots', { tag: 'fine', recipe: tag }],
      ['/v1/sandboxes', { snapshot_tag: tag }],
      ['/v1/snapshots/plain/compact', { to: tag }],
      ['/v1/workspaces', { name: tag, snapshot_tag: 'plain' }],
      ['/v1/workspaces', { name: 'fine', snapshot_tag: tag }],
      ['/v1/sandboxes/sb-00000000000000000000/branch', { tag }],
      ['/v1/sandboxes/sb-00000000000000000000/branch', { parent_tag: tag }],
    ] as const)
      expect([tag, path, (await say('POST', path, body)).status]).toEqual([tag, path, 400]);
  }
  expect(around()).toEqual(before);
  expect(readdirSync(`${root}/snapshots`)).toEqual(['plain']);
});

it('class 2: an id in a path reaches no other route', async () => {
  for (const id of ['..%2fsnapshots', '..%2f..%2fversion', '..;', 'sb-..%2fsnapshots%2fplain', '%2e%2e'])
    expect([id, (await say('GET', `/v1/sandboxes/${id}`)).status]).toEqual([id, 400]);
});

it('class 3: every route that takes a name checks it, by the same rule', () => {
  for (const [name, { path, params }] of Object.entries<Route>(ROUTES))
    for (const [, parameter] of path.matchAll(/:([a-z]+)/g))
      for (const climb of CLIMBS)
        expect([name, params?.safeParse({ [parameter!]: climb }).success ?? true]).toEqual([name, false]);
});

it('class 10: no more snapshots are written at the same time than the disk is meant for', async () => {
  const gone = new AbortController();
  const writing = [0, 1, 2, 3].map((k) =>
    say('POST', '/v1/snapshots', { tag: `many-${k}`, recipe: 'plain' }, gone.signal).catch(() => undefined),
  );
  while ((await say('GET', '/v1/snapshots')).body.length < 5) await new Promise((done) => setTimeout(done, 20));
  const fifth = await say('POST', '/v1/snapshots', { tag: 'many-4', recipe: 'plain' });
  expect([fifth.status, fifth.body.code]).toEqual([503, 'overloaded']);
  gone.abort();
  await Promise.all(writing);
  while ((await say('GET', '/v1/snapshots')).body.length > 1) await new Promise((done) => setTimeout(done, 20));
  expect(readdirSync(`${root}/snapshots`)).toEqual(['plain']);
});

it('class 12: what a sandbox uses cannot be removed', async () => {
  const [{ id }] = (await spawn()) as [SandboxInfo];
  const refused = await say('DELETE', '/v1/snapshots/plain');
  expect([refused.status, refused.body.code]).toEqual([409, 'state_conflict']);
  const spawning = spawn(5);
  await new Promise((done) => setTimeout(done, 50));
  await say('DELETE', `/v1/sandboxes/${id}`);
  // While children are being made as well, also when none is there yet.
  expect((await say('DELETE', '/v1/snapshots/plain')).status).toBe(409);
  await spawning;
  await killAll();
});

it('class 16: a guest that stands still holds up nobody but those who asked it', async () => {
  const [still, other] = (await spawn(2)) as [SandboxInfo, SandboxInfo];
  process.kill(still.pid!, 'SIGSTOP');
  try {
    const asked = say('POST', `/v1/sandboxes/${still.id}/exec`, { args: ['true'], timeout_secs: 1 });
    const since = Date.now();
    expect((await say('POST', `/v1/sandboxes/${other.id}/ping`)).status).toBe(200);
    expect((await say('GET', '/v1/sandboxes')).body).toHaveLength(2);
    expect(Date.now() - since).toBeLessThan(1000);
    expect((await asked).status).toBe(504);
  } finally {
    process.kill(still.pid!, 'SIGCONT');
  }
  expect((await say('POST', `/v1/sandboxes/${still.id}/ping`)).status).toBe(200);
  process.kill(still.pid!, 'SIGSTOP');
  expect((await say('DELETE', `/v1/sandboxes/${still.id}`)).status).toBe(204);
  await killAll();
});

it('class 17: another program that tidies the same data directory touches nothing of the daemon', async () => {
  const sandboxes = await spawn(2);
  const helper = HostHelper.start();
  const controller = await Controller.open(root, new QemuEngine({ helper }), helper);
  await controller[Symbol.asyncDispose]();
  await helper[Symbol.asyncDispose]();
  for (const { id } of sandboxes)
    expect((await say('POST', `/v1/sandboxes/${id}/exec`, { args: ['hostname'] })).body.stdout).toBe(`${id}\n`);
  await killAll();
});

it('class 19: a snapshot names no path of the host', () => {
  const text = readFileSync(`${root}/snapshots/plain/snapshot.json`, 'utf8');
  for (const value of Object.values(JSON.parse(text))) expect(JSON.stringify(value)).not.toMatch(/"\/\w+\//);
});

it('class 26: no package we depend on is deprecated', () => {
  const lock = JSON.parse(readFileSync(new URL('../../../package-lock.json', import.meta.url), 'utf8'));
  const deprecated = Object.entries<{ deprecated?: string }>(lock.packages).filter(([, entry]) => entry.deprecated);
  expect(deprecated.map(([name]) => name)).toEqual([]);
});

it('class 30: a restart forgets nothing it has started', async () => {
  const before = await spawn(2);
  daemon.signal('SIGKILL');
  await daemon.restart();
  expect((await say('GET', '/v1/sandboxes')).body).toEqual(expect.arrayContaining(before));
  const [{ id, pid }] = before as [SandboxInfo];
  expect((await say('DELETE', `/v1/sandboxes/${id}`)).status).toBe(204);
  expect(processesUsing(root)).not.toContain(pid);
  await killAll();
});

it('a link in the data directory leads the helper nowhere', async () => {
  // There is no zygote yet, which would have the files open.
  daemon.signal('SIGKILL');
  await daemon.restart();
  const elsewhere = `${root}-elsewhere`;
  renameSync(`${root}/snapshots/plain`, elsewhere);
  symlinkSync(elsewhere, `${root}/snapshots/plain`);
  const { status, body } = await say('POST', '/v1/sandboxes', { snapshot_tag: 'plain' });
  rmSync(`${root}/snapshots/plain`);
  renameSync(elsewhere, `${root}/snapshots/plain`);
  expect({ status, ...body }).toMatchObject({ status: 503, code: 'host_unfit', hint: expect.stringContaining('link') });
  await spawn();
  await killAll();
});

it('class 33: a snapshot that cannot be made again is not harmed by the attempt', async () => {
  expect((await say('POST', '/v1/snapshots', { tag: 'plain', recipe: 'plain' })).status).toBe(409);
  expect((await say('POST', '/v1/snapshots', { tag: 'plain', recipe: 'absent' })).status).toBe(404);
  await spawn();
  await killAll();
});

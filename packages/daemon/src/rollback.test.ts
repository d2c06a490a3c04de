import { readdirSync, writeFileSync } from 'node:fs';
import { leaks } from '@forkd/controller';
import type { SandboxInfo } from '@forkd/protocol';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Answer, TestDaemon } from './testing.js';

let daemon: TestDaemon;

beforeAll(async () => {
  daemon = await TestDaemon.plain();
});

afterAll(() => daemon.stop());

const say = (method: string, path: string, body?: object): Promise<Answer> => daemon.say(method, path, body);

async function spawn(more = {}): Promise<SandboxInfo> {
  const { status, body } = await say('POST', '/v1/sandboxes', { snapshot_tag: 'plain', ...more });
  expect(status, JSON.stringify(body)).toBe(201);
  return body[0];
}

async function fork(id: string, n = 1): Promise<string[]> {
  const { body } = await say('POST', `/v1/sandboxes/${id}/fork`, { n });
  return body.results.map(({ sandbox }: { sandbox: SandboxInfo }) => sandbox.id);
}

const shell = (id: string, command: string): Promise<string> => daemon.shell(id, command);

/** A mark in its memory and one on its disk. */
async function mark(id: string, word: string): Promise<void> {
  await shell(id, `echo ${word} | tee /dev/shm/mark > /root/mark; sync`);
}

const marks = (id: string): Promise<string> => shell(id, 'cat /dev/shm/mark /root/mark');

async function branch(id: string, tag: string, mode = 'live'): Promise<void> {
  const { status, body } = await say('POST', `/v1/sandboxes/${id}/branch`, { tag, mode });
  expect(status, JSON.stringify(body)).toBe(201);
}

const rollback = (id: string, tag: string): Promise<Answer> =>
  say('POST', `/v1/sandboxes/${id}/rollback`, { snapshot_tag: tag });

async function restart(going: Promise<unknown>): Promise<void> {
  daemon.signal('SIGKILL');
  await Promise.all([daemon.ended(), going]);
  daemon = await TestDaemon.start(['--recipes', `${daemon.root}/recipes`], daemon.root);
}

async function until(holds: () => Promise<boolean>): Promise<void> {
  for (let tries = 0; !(await holds()); tries++) expect(tries).toBeLessThan(100);
}

/** VMs of sandboxes: the daemon has a directory for each, and for nothing else of a sandbox. */
const places = (): string[] => readdirSync(`${daemon.root}/run/daemon`).filter((name) => name.startsWith('sb-'));

it('a sandbox goes back and forth between snapshots of its line and stays who it is', async () => {
  const before = await spawn({ env: { WHO: 'ann' }, metadata: { job: '7' }, ttl_secs: 3600, memory_limit_mib: 512 });
  const { id } = before;
  await mark(id, 'one');
  await branch(id, 'one');
  await mark(id, 'two');
  await branch(id, 'two');
  await mark(id, 'three');
  const back = await rollback(id, 'one');
  expect([back.status, back.body.code]).toEqual([200, undefined]);
  expect(back.body).toMatchObject({
    ...before,
    pid: expect.any(Number),
    snapshot_tag: 'one',
    has_branched: true,
    branch_count: 2,
  });
  expect(back.body.pid).not.toBe(before.pid);
  expect(await marks(id)).toBe('one\none');
  expect(await shell(id, 'hostname; echo $WHO')).toBe(`${id}\nann`);
  expect(places()).toHaveLength(1);

  // Forward again: what was taken of it is of its line. A paused one runs afterwards.
  await say('POST', `/v1/sandboxes/${id}/pause`);
  expect((await rollback(id, 'two')).body).toMatchObject({ state: 'running', snapshot_tag: 'two' });
  expect(await marks(id)).toBe('two\ntwo');
  expect((await rollback(id, 'plain')).status).toBe(200);
  expect(await shell(id, 'ls /root/mark 2>/dev/null || echo none')).toBe('none');
  // It is in use by nobody now.
  expect((await say('DELETE', '/v1/snapshots/two')).status).toBe(204);
  await branch(id, 'again');
  expect((await rollback(id, 'again')).status).toBe(200);
  expect((await say('DELETE', `/v1/sandboxes/${id}`)).status).toBe(204);
  expect(places()).toEqual([]);
});

it('what cannot be gone back to is refused, and the sandbox runs on', async () => {
  const [{ id }, other] = [await spawn(), await spawn()];
  await mark(id, 'here');
  await branch(other.id, 'others');
  for (const [tag, status, code] of [
    ['others', 400, 'invalid_request'],
    ['absent', 404, 'snapshot_not_found'],
    ['../x', 400, 'invalid_request'],
  ] as const) {
    const { body, ...reply } = await rollback(id, tag);
    expect([reply.status, body.code]).toEqual([status, code]);
  }
  expect((await rollback(`sb-${'0'.repeat(20)}`, 'plain')).status).toBe(404);
  expect(await marks(id)).toBe('here\nhere');
  // A VM that cannot be made: in this mode there is no copy that it could come from.
  await branch(id, 'broken', 'diff');
  writeFileSync(`${daemon.root}/snapshots/broken/device.state`, 'not what a VMM wrote');
  expect((await rollback(id, 'broken')).status).toBeGreaterThanOrEqual(500);
  expect(await marks(id)).toBe('here\nhere');
  expect((await say('GET', `/v1/sandboxes/${id}`)).body).toMatchObject({ state: 'running', snapshot_tag: 'plain' });
  expect(places().sort()).toEqual([id, other.id].sort());
});

it('one thing at a time, and who ends it wins', async () => {
  const { id } = await spawn();
  await mark(id, 'x');
  const [first, second, exec] = await Promise.all([
    rollback(id, 'plain'),
    rollback(id, 'plain'),
    say('POST', `/v1/sandboxes/${id}/exec`, { args: ['true'] }),
  ]);
  expect([first.status, second.status].sort()).toEqual([200, 409]);
  expect([first, second].find(({ status }) => status === 409)!.body.details).toEqual({ state: 'being rolled back' });
  expect([200, 409]).toContain(exec.status);
  const [back, ended] = await Promise.all([rollback(id, 'plain'), say('DELETE', `/v1/sandboxes/${id}`)]);
  expect(ended.status).toBe(204);
  expect([200, 404, 409, 499]).toContain(back.status);
  expect((await say('GET', `/v1/sandboxes/${id}`)).status).toBe(404);
});

it('a daemon that is killed at any moment leaves one VM, and the record names it', async () => {
  const { id } = await spawn({ memory_limit_mib: 512 });
  await mark(id, 'old');
  for (const wait of [0, 20, 60, 120, 200, 320, 500]) {
    const going = rollback(id, 'plain').catch(() => {});
    await new Promise((done) => setTimeout(done, wait));
    await restart(going);
    const { body } = await say('GET', `/v1/sandboxes/${id}`);
    expect(body).toMatchObject({ state: 'running', memory_limit_mib: 512 });
    const others = (await say('GET', '/v1/sandboxes')).body.length;
    expect(places()).toHaveLength(others);
    expect(leaks(daemon.root).processes.filter((pid) => pid === body.pid)).toHaveLength(1);
    const found = await shell(id, 'cat /dev/shm/mark /root/mark 2>/dev/null || true; hostname');
    expect([`old\nold\n${id}`, id]).toContain(found);
    if (found === id) await mark(id, 'old');
  }
});

it('a child takes the id of the sandbox it was forked from, with all it has', async () => {
  const { id } = await spawn({ env: { WHO: 'ann' }, metadata: { job: 'source' } });
  await mark(id, 'source');
  const [first, second] = (await fork(id, 2)) as [string, string];
  await mark(first, 'first');
  await mark(second, 'second');
  const { pid } = (await say('GET', `/v1/sandboxes/${first}`)).body;
  const { status, body } = await say('POST', `/v1/sandboxes/${first}/promote`);
  expect([status, body.code]).toEqual([200, undefined]);
  expect(body).toMatchObject({ id, pid, state: 'running', promoted_from: first, metadata: {} });
  expect(await marks(id)).toBe('first\nfirst');
  expect(await shell(id, 'hostname; echo $WHO')).toBe(`${id}\nann`);
  expect((await say('GET', `/v1/sandboxes/${first}`)).status).toBe(404);
  expect((await say('POST', `/v1/sandboxes/${id}/promote`)).body.code).toBe('state_conflict');
  // It can be forked, rolled back and killed like any other; and a sibling can still take its place.
  await branch(id, 'of-promoted');
  await mark(id, 'later');
  expect((await rollback(id, 'of-promoted')).status).toBe(200);
  expect(await marks(id)).toBe('first\nfirst');
  expect((await say('POST', `/v1/sandboxes/${second}/promote`)).body).toMatchObject({ id, promoted_from: second });
  expect(await marks(id)).toBe('second\nsecond');
  await say('DELETE', `/v1/sandboxes/${id}`);
  expect((await say('GET', `/v1/sandboxes/${id}`)).status).toBe(404);

  const other = await spawn();
  const [orphan] = (await fork(other.id)) as [string];
  await say('POST', `/v1/sandboxes/${orphan}/pause`);
  expect((await say('POST', `/v1/sandboxes/${orphan}/promote`)).body).toMatchObject({ details: { state: 'paused' } });
  await say('POST', `/v1/sandboxes/${orphan}/resume`);
  await say('DELETE', `/v1/sandboxes/${other.id}`);
  expect((await say('POST', `/v1/sandboxes/${orphan}/promote`)).body.id).toBe(other.id);
  expect((await say('POST', `/v1/sandboxes/${(await spawn()).id}/promote`)).status).toBe(409);
});

it('a promotion that is cut short has happened or has not', async () => {
  const { id } = await spawn();
  for (const wait of [0, 5, 10, 20, 40, 80]) {
    const [child] = (await fork(id)) as [string];
    const going = say('POST', `/v1/sandboxes/${child}/promote`).catch(() => {});
    await new Promise((done) => setTimeout(done, wait));
    await restart(going);
    const listed: SandboxInfo[] = (await say('GET', '/v1/sandboxes')).body;
    expect(places()).toHaveLength(listed.length);
    const left = listed.find((sandbox) => sandbox.id === child);
    expect(listed.find((sandbox) => sandbox.id === id)?.promoted_from === child).toBe(left === undefined);
    if (left) await until(async () => (await shell(child, 'hostname')) === child);
    expect(await shell(id, 'hostname')).toBe(id);
    if (left) await say('DELETE', `/v1/sandboxes/${child}`);
  }
});

import { readdirSync, statSync } from 'node:fs';
import type { SandboxInfo, SnapshotInfo } from '@forkd/protocol';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Answer, TestDaemon } from './testing.js';

let daemon: TestDaemon;

beforeAll(async () => {
  daemon = await TestDaemon.start();
  expect((await say('POST', '/v1/snapshots', { tag: 'numpy', recipe: 'python-numpy' })).status).toBe(201);
});

afterAll(() => daemon.stop());

function say(method: string, path: string, body?: object): Promise<Answer> {
  return daemon.say(method, path, body);
}

function spawn(tag = 'numpy', more = {}): Promise<string> {
  return daemon.spawn(tag, more);
}

async function branch(id: string, body: object = {}): Promise<SnapshotInfo> {
  const reply = await say('POST', `/v1/sandboxes/${id}/branch`, body);
  expect(reply.status, JSON.stringify(reply.body)).toBe(201);
  return reply.body;
}

async function evaluate(id: string, code: string): Promise<string> {
  const { body } = await say('POST', `/v1/sandboxes/${id}/eval`, { code });
  expect(body.error, JSON.stringify(body)).toBeNull();
  return body.result;
}

function shell(id: string, command: string): Promise<string> {
  return daemon.shell(id, command);
}

function killAll(): Promise<void> {
  return daemon.killAll();
}

describe.each(['live', 'diff', 'full'] as const)('mode %s', (mode) => {
  it('the child goes on from the instant of the branch, the source too, and neither sees the other', async () => {
    const source = await spawn('numpy', { env: { COLOUR: 'red' } });
    await evaluate(source, 'thought = list(range(1000))');
    await shell(source, 'echo before > /root/note; sync');
    const taken = await branch(source, { mode, tag: `taken-${mode}` });
    expect(taken).toMatchObject({ branched_from: source, status: 'ready', bootable: true });
    expect(taken.pause_ms).toBeGreaterThan(0);
    expect(taken.diff_physical_bytes).toBeGreaterThan(0);
    await evaluate(source, 'thought.append("after")');
    await shell(source, 'echo after > /root/note');
    const child = await spawn(taken.tag);
    expect(await evaluate(child, 'len(thought)')).toBe('1000');
    expect(await shell(child, 'cat /root/note; hostname; echo $COLOUR')).toBe(`before\n${child}\nred`);
    await evaluate(child, 'thought.clear()');
    expect(await evaluate(source, 'len(thought)')).toBe('1001');
    expect((await say('GET', `/v1/sandboxes/${source}`)).body).toMatchObject({ has_branched: true, branch_count: 1 });
    await killAll();
    expect((await say('DELETE', `/v1/snapshots/${taken.tag}`)).status).toBe(204);
  });
});

it('what is stored is what was changed, and depth costs nothing', async () => {
  let id = await spawn();
  const tags: string[] = [];
  for (let depth = 0; depth < 4; depth++) {
    await evaluate(id, `mark_${depth} = bytearray(__import__('os').urandom(4 << 20))`);
    const { tag, diff_physical_bytes } = await branch(id, { tag: `deep-${depth}` });
    expect(diff_physical_bytes).toBeLessThan(((depth + 1) * 4 + 40) << 20);
    tags.push(tag);
    const child = await spawn(tag);
    for (let above = 0; above <= depth; above++)
      expect(await evaluate(child, `len(mark_${above})`)).toBe(String(4 << 20));
    await say('DELETE', `/v1/sandboxes/${id}`);
    id = child;
  }
  const info = (await say('GET', '/v1/snapshots/deep-3/info')).body;
  expect(info).toMatchObject({ chain_depth: 4, parent_tag: 'deep-2', ancestors: ['numpy', ...tags.slice(0, 3)] });
  expect((await say('GET', '/v1/snapshots/deep-1/info')).body.dependents).toEqual(['deep-2']);

  // A copy that stands alone; a parent that is taken away leaves its children as they were; cascade takes them along.
  const compact = await say('POST', '/v1/snapshots/deep-3/compact', { to: 'alone' });
  expect([compact.status, compact.body.branched_from]).toEqual([200, 'compact:deep-3']);
  await killAll();
  expect((await say('DELETE', '/v1/snapshots/deep-0')).status).toBe(409);
  expect((await say('DELETE', '/v1/snapshots/deep-0?force=true')).status).toBe(204);
  for (const tag of ['deep-3', 'alone']) {
    const child = await spawn(tag);
    for (let above = 0; above < 4; above++) expect(await evaluate(child, `len(mark_${above})`)).toBe(String(4 << 20));
  }
  await killAll();
  expect((await say('DELETE', '/v1/snapshots/deep-1?cascade=true')).status).toBe(204);
  expect(readdirSync(`${daemon.root}/snapshots`).sort()).toEqual(['alone', 'numpy']);
  await say('DELETE', '/v1/snapshots/alone');
});

it('several branches of one sandbox at once, each whole, and nobody waits for another source', async () => {
  const ids = await Promise.all([spawn(), spawn()]);
  for (const id of ids) await evaluate(id, `me = '${id}'`);
  const branches = await Promise.all([0, 1, 2, 3].map((k) => branch(ids[k % 2]!, { tag: `at-once-${k}` })));
  for (const [k, { tag }] of branches.entries()) {
    const child = await spawn(tag);
    expect(await evaluate(child, 'me')).toBe(`'${ids[k % 2]}'`);
  }
  const [many] = await Promise.all([
    Promise.all([0, 1, 2, 3, 4, 5].map((k) => say('POST', `/v1/sandboxes/${ids[0]}/branch`, { tag: `many-${k}` }))),
  ]);
  expect(new Set(many.map(({ status }) => status))).toEqual(new Set([201, 503]));
  await killAll();
  for (const { tag } of (await say('GET', '/v1/snapshots')).body)
    if (tag !== 'numpy') expect((await say('DELETE', `/v1/snapshots/${tag}`)).status).toBe(204);
});

it('wait: false answers when the source runs again; what is being written is never spawned from', async () => {
  const id = await spawn();
  await evaluate(id, "weight = bytearray(__import__('os').urandom(60 << 20))");
  const begun = await say('POST', `/v1/sandboxes/${id}/branch`, { wait: false });
  expect([begun.status, begun.body.status]).toEqual([202, 'writing']);
  expect(begun.body.tag).toMatch(new RegExp(`^branch-${id}-\\d+-[0-9a-f]{4}$`));
  const early = await say('POST', '/v1/sandboxes', { snapshot_tag: begun.body.tag });
  expect([201, 409]).toContain(early.status);
  for (;;) {
    const { body } = await say('GET', `/v1/snapshots/${begun.body.tag}`);
    if (body.status === 'ready') break;
    expect(body).toMatchObject({ status: 'writing', bootable: false });
    await new Promise((done) => setTimeout(done, 20));
  }
  const child = await spawn(begun.body.tag);
  expect(await evaluate(child, 'len(weight)')).toBe(String(60 << 20));
  await killAll();
  await say('DELETE', `/v1/snapshots/${begun.body.tag}`);
});

it.each([
  [{ mode: 'live', diff: true }, 400],
  [{ diff: true, live: true }, 400],
  [{ measure_diff: true, diff: true }, 400],
  [{ mode: 'full', wait: false }, 400],
  [{ parent_tag: 'other' }, 400],
  [{ tag: '../x' }, 400],
  [{ tag: 'numpy' }, 409],
  [{ measure_diff: true, tag: 'measured' }, 201],
  [{ live: true, tag: 'by-flag', parent_tag: 'numpy' }, 201],
])('forkd says %j in its own way', async (body, status) => {
  const id = await spawn();
  const reply = await say('POST', `/v1/sandboxes/${id}/branch`, body);
  expect([reply.status, reply.body.code]).toEqual([status, status === 201 ? undefined : reply.body.code]);
  await killAll();
  if (status === 201) await say('DELETE', `/v1/snapshots/${reply.body.tag}`);
});

it('fork: children of a running sandbox in one call', async () => {
  const id = await spawn();
  await evaluate(id, 'hints = []');
  const { status, body } = await say('POST', `/v1/sandboxes/${id}/fork`, {
    n: 3,
    tag: 'forked',
    metadata: { of: 'it' },
  });
  expect([status, body.results.length, body.snapshot.tag]).toEqual([201, 3, 'forked']);
  const children: string[] = body.results.map(({ sandbox }: { sandbox: SandboxInfo }) => sandbox.id);
  await Promise.all(children.map((child, k) => evaluate(child, `hints.append(${k})`)));
  for (const [k, child] of children.entries()) expect(await evaluate(child, 'hints')).toBe(`[${k}]`);
  expect(await evaluate(id, 'hints')).toBe('[]');
  await killAll();
  await say('DELETE', '/v1/snapshots/forked');
});

it('a paused sandbox is branched as it stands, and stays paused', async () => {
  const id = await spawn();
  await say('POST', `/v1/sandboxes/${id}/pause`);
  const { tag } = await branch(id, { tag: 'still' });
  expect((await say('GET', `/v1/sandboxes/${id}`)).body.state).toBe('paused');
  expect(await evaluate(await spawn(tag), '6 * 7')).toBe('42');
  await killAll();
  await say('DELETE', '/v1/snapshots/still');
});

it('a workspace is suspended and resumed again and again and loses nothing', async () => {
  const made = await say('POST', '/v1/workspaces', { name: 'desk', snapshot_tag: 'numpy', env: { WHO: 'ann' } });
  expect([made.status, made.body.status]).toEqual([201, 'running']);
  expect((await say('POST', '/v1/workspaces', { name: 'desk', snapshot_tag: 'numpy' })).status).toBe(409);
  expect((await say('POST', '/v1/workspaces/desk/resume')).status).toBe(409);
  await evaluate(made.body.live_sandbox_id, 'pages = []');
  for (let round = 0; round < 3; round++) {
    const { live_sandbox_id: id } = (await say('GET', '/v1/workspaces/desk')).body;
    await evaluate(id, `pages.append(${round})`);
    await shell(id, `echo ${round} >> /root/pages`);
    const put = await say('POST', '/v1/workspaces/desk/suspend', {});
    expect([put.status, put.body.status, put.body.live_sandbox_id]).toEqual([200, 'suspended', undefined]);
    expect((await say('GET', '/v1/sandboxes')).body).toEqual([]);
    const out = await say('POST', '/v1/workspaces/desk/resume');
    expect([out.status, out.body.status]).toEqual([200, 'running']);
  }
  const { live_sandbox_id: id } = (await say('GET', '/v1/workspaces/desk')).body;
  expect(await evaluate(id, 'pages')).toBe('[0, 1, 2]');
  expect(await shell(id, 'cat /root/pages; echo $WHO')).toBe('0\n1\n2\nann');
  // Only the last state is kept.
  expect(readdirSync(`${daemon.root}/snapshots`).filter((tag) => tag.startsWith('ws-'))).toHaveLength(1);
  const { pid } = (await say('GET', `/v1/sandboxes/${id}`)).body;
  process.kill(pid, 'SIGKILL');
  for (let status = ''; status !== 'stale'; ) status = (await say('GET', '/v1/workspaces/desk')).body.status;
  expect((await say('POST', '/v1/workspaces/desk/resume')).body.status).toBe('running');
  expect((await say('DELETE', '/v1/workspaces/desk')).status).toBe(204);
  expect((await say('GET', '/v1/workspaces')).body).toEqual([]);
  expect(readdirSync(`${daemon.root}/snapshots`)).toEqual(['numpy']);
  expect(statSync(`${daemon.root}/run/daemon`).isDirectory()).toBe(true);
  await killAll();
});

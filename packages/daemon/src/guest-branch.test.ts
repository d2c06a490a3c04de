import type { SandboxInfo, SnapshotInfo } from '@forkd/protocol';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { type Answer, TestDaemon } from './testing.js';

let daemon: TestDaemon;

beforeAll(async () => {
  daemon = await TestDaemon.plain();
});

afterEach(() => daemon.killAll());

afterAll(() => daemon.stop());

const say = (method: string, path: string, body?: object): Promise<Answer> => daemon.say(method, path, body);

const info = async (id: string): Promise<SandboxInfo> => (await say('GET', `/v1/sandboxes/${id}`)).body;

/** Runs in the guest with nobody attached to it, and leaves what it says in /root/said. */
function background(id: string, script: string): Promise<string> {
  const quoted = script.replaceAll("'", `'\\''`);
  return daemon.shell(id, `rm -f /root/said; setsid sh -c '${quoted}' > /root/out 2>&1 < /dev/null &`);
}

/** What was said in /root/said, when it is there. */
function said(id: string): Promise<string> {
  return daemon.shell(
    id,
    'for i in $(seq 200); do [ -s /root/said ] && exec cat /root/said; sleep 0.1; done; cat /root/out',
  );
}

async function refusal(id: string, command: string, user?: string) {
  const args = ['forkd-guest', ...command.split(' '), '--json'];
  const { body } = await say('POST', `/v1/sandboxes/${id}/exec`, { args, user, cwd: '/' });
  expect(body.exit_code, JSON.stringify(body)).toBe(1);
  return JSON.parse(body.stdout).error;
}

it('a program forks the sandbox it is in: one goes on as the source, the others as children, all with their memory', async () => {
  const id = await daemon.spawn('plain', { guest_branch: true, metadata: { job: '7' }, ttl_secs: 900 });
  expect(await info(id)).toMatchObject({ guest_branch: true, max_forks: { count: 32, depth: 8 } });
  await background(
    id,
    'mine=$RANDOM$$; echo $mine > /root/mine; answer=$(forkd-guest branch --fork 2 --tag half-way); echo "$mine $answer" > /root/said.new; mv /root/said.new /root/said; exec sleep 1000',
  );
  const source = await said(id);
  const mine = await daemon.shell(id, 'cat /root/mine');
  const [, tag, ...children] = source.slice(mine.length + 1).split(' ');
  expect([source.startsWith(`${mine} source `), tag, children.length]).toEqual([true, 'half-way', 2]);
  for (const [index, child] of children.entries()) {
    expect(await said(child)).toBe(`${mine} child ${index + 1} ${child}`);
    expect(await daemon.shell(child, 'hostname; grep -l sleep /proc/[0-9]*/comm | wc -l')).toBe(`${child}\n1`);
    const { metadata, expires_at_unix, guest_branch, snapshot_tag } = await info(child);
    expect({ metadata, guest_branch, snapshot_tag }).toEqual({
      metadata: { job: '7' },
      guest_branch: true,
      snapshot_tag: 'half-way',
    });
    expect(expires_at_unix! - (await info(id)).expires_at_unix!).toBeLessThanOrEqual(1);
  }

  // Whoever starts from that snapshot is a child, also later, several at once (from a zygote), and after a rollback.
  const later = await say('POST', '/v1/sandboxes', { snapshot_tag: 'half-way', n: 3 });
  const ids = (later.body as SandboxInfo[]).map((one) => one.id);
  for (const [index, child] of ids.entries()) expect(await said(child)).toBe(`${mine} child ${index + 1} ${child}`);
  expect((await say('POST', `/v1/sandboxes/${id}/rollback`, { snapshot_tag: 'half-way' })).status).toBe(200);
  expect(await said(id)).toBe(`${mine} child 1 ${id}`);

  // A child may fork again, and the line is bounded.
  const [child] = children as [string];
  const again = JSON.parse(await daemon.shell(child, 'forkd-guest branch --fork 1 --json'));
  expect(again).toEqual({ role: 'source', tag: expect.any(String), children: [expect.any(String)], failed: [] });
  expect((await info(again.children[0])).guest_branch).toBe(true);
  expect((await say('GET', `/v1/snapshots/${again.tag}`)).body.branched_from).toBe(child);
  const denied = await say('POST', `/v1/sandboxes/${child}/fork`, { guest_branch: false });
  expect(denied.body.results[0].sandbox.guest_branch).toBe(undefined);
});

it('a program that was started by exec goes on in the children', async () => {
  const id = await daemon.spawn('plain', { guest_branch: true });
  const script =
    'a=5; forkd-guest branch --fork 1 > /root/new; echo $a >> /root/new; mv /root/new /root/said; cat /root/said';
  const [source, , child, five] = (await daemon.shell(id, script)).split(/\s+/);
  expect([source, five]).toEqual(['source', '5']);
  expect(await said(child!)).toBe(`child 1 ${child}\n5`);
});

it('it is refused to those who may not, beyond what a line may have, and where it makes no sense', async () => {
  const locked = await daemon.spawn('plain');
  expect(await refusal(locked, 'branch --fork 1')).toMatchObject({ code: 'not_permitted' });
  const id = await daemon.spawn('plain', { guest_branch: true, max_forks: { count: 1, depth: 1 } });
  expect(await refusal(id, 'branch', 'nobody')).toMatchObject({
    code: 'not_permitted',
    message: expect.stringContaining('may not'),
  });
  expect(await refusal(id, 'branch --fork 2')).toMatchObject({
    code: 'budget_exceeded',
    message: expect.stringContaining('count of at most 1, not 2'),
  });
  expect(await refusal(id, 'branch --fork 1001')).toMatchObject({ code: 'invalid_request' });
  expect(await refusal(id, 'branch --tag ../../etc')).toMatchObject({ code: 'invalid_request' });
  expect(await refusal(id, 'branch --tag plain')).toMatchObject({ code: 'tag_exists' });
  const { children } = JSON.parse(await daemon.shell(id, 'forkd-guest branch --fork 1 --json'));
  expect(await refusal(children[0], 'branch --fork 1')).toMatchObject({
    code: 'budget_exceeded',
    message: expect.stringContaining('depth of at most 1, not 2'),
  });
  // It may still be saved.
  expect(await daemon.shell(children[0], 'forkd-guest branch --tag deep')).toBe('source deep');
  // Nobody gets by forking what they were not given.
  const { body } = await say('POST', `/v1/sandboxes/${locked}/fork`);
  expect(await refusal(body.results[0].sandbox.id, 'branch')).toMatchObject({ code: 'not_permitted' });
});

it('a daemon that is killed meanwhile leaves nobody waiting, and the next one is asked as the one before', async () => {
  const id = await daemon.spawn('plain', { guest_branch: true });
  const ask = 'forkd-guest branch --fork 1 > /root/new 2>&1; mv /root/new /root/said';
  await background(id, ask);
  const begun = ({ tag }: SnapshotInfo): boolean => tag.startsWith(`branch-${id}`);
  while (!(await say('GET', '/v1/snapshots')).body.some(begun));
  daemon.signal('SIGKILL');
  await daemon.restart();
  expect(await said(id)).toMatch(/restarted while this branch was made/);
  await background(id, ask);
  expect(await said(id)).toMatch(/^source branch-\S+ sb-/);

  // Who asks while no daemon is there is heard by the next one.
  await background(id, `sleep 1; ${ask}`);
  daemon.signal('SIGKILL');
  await daemon.ended();
  await new Promise((done) => setTimeout(done, 1500));
  await daemon.restart();
  expect(await said(id)).toMatch(/^source branch-\S+ sb-/);
});

it('one that was paused in the middle of telling something when its daemon was killed goes on, and is heard', async () => {
  const id = await daemon.spawn('plain', { guest_branch: true });
  const ndjson = { accept: 'application/x-ndjson' };
  for (let time = 0; time < 3; time++) {
    const talk = await daemon.fetch('POST', `/v1/sandboxes/${id}/exec`, { args: ['yes'] }, ndjson);
    await talk.body!.getReader().read();
    expect((await say('POST', `/v1/sandboxes/${id}/pause`)).status).toBe(200);
    daemon.signal('SIGKILL');
    await daemon.restart();
    expect((await info(id)).state).toBe('paused');
    expect((await say('POST', `/v1/sandboxes/${id}/resume`)).status).toBe(200);
    expect(await daemon.shell(id, 'hostname')).toBe(id);
  }
  expect(await daemon.shell(id, 'forkd-guest branch')).toMatch(/^source branch-/);
});

it('a workspace keeps it when it is suspended', async () => {
  const made = await say('POST', '/v1/workspaces', { name: 'ws', snapshot_tag: 'plain', guest_branch: true });
  expect(made.status).toBe(201);
  await say('POST', '/v1/workspaces/ws/suspend');
  const { body } = await say('POST', '/v1/workspaces/ws/resume');
  expect(await daemon.shell(body.live_sandbox_id, 'forkd-guest branch')).toMatch(/^source branch-/);
  expect((await say('DELETE', '/v1/workspaces/ws')).status).toBe(204);
});

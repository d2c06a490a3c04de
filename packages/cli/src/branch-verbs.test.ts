import { truncateSync } from 'node:fs';
import type { SandboxInfo, SnapshotInfo } from '@forkd/protocol';
import { startTestDaemon, type TestDaemon } from '@forkd/sdk/testing';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { forkd, type Ran } from './testing.js';

let daemon: TestDaemon;
let env: NodeJS.ProcessEnv;
let id: string;

beforeAll(async () => {
  daemon = await startTestDaemon();
  env = { FORKD_URL: daemon.url, FORKD_TOKEN: daemon.token };
  expect((await ask('snapshot', '--tag', 'warm', '--recipe', 'python-numpy')).code).toBe(0);
  id = ((await json('spawn', '--tag', 'warm')) as SandboxInfo[])[0]!.id;
  expect((await ask('eval', id, 'plan = ["begin"]')).code).toBe(0);
});
afterAll(() => daemon?.stop());

function ask(...args: string[]): Promise<Ran> {
  return forkd(args, { env });
}

async function json(...args: string[]): Promise<unknown> {
  const { code, stdout, stderr } = await ask(...args, '--json');
  expect([code, stderr]).toEqual([0, '']);
  return JSON.parse(stdout);
}

async function evaluated(sandbox: string, code: string): Promise<string> {
  return (await ask('eval', sandbox, code)).stdout.trim();
}

it.each([
  ['whole', []],
  ['different', ['--diff']],
  ['alive', ['--live']],
])('snapshot --from-sandbox %s %j: its children go on from there', async (tag, flags) => {
  const { code, stdout } = await ask('snapshot', '--from-sandbox', id, '--tag', tag, ...flags);
  expect([code, stdout]).toEqual([0, expect.stringMatching(new RegExp(`branched_from: ${id}\npause_ms: [\\d.]+`))]);
  const [child] = (await json('spawn', '--tag', tag)) as SandboxInfo[];
  expect(await evaluated(child!.id, 'plan')).toBe("['begin']");
  expect((await ask('kill', child!.id)).code).toBe(0);
  expect((await ask('rmi', tag)).code).toBe(0);
});

it('--no-wait and wait; what is not there has exit code 3, what failed 1', async () => {
  const refused = await ask('snapshot', '--from-sandbox', id, '--no-wait');
  expect(refused).toMatchObject({ code: 2, stderr: expect.stringContaining('wait: false goes with mode live') });
  expect((await ask('snapshot', '--from-sandbox', id, '--tag', 'soon', '--live', '--no-wait')).code).toBe(0);
  expect(await ask('wait', 'soon')).toMatchObject({ code: 0, stdout: expect.stringContaining('status: ready') });
  expect(await json('wait', 'soon')).toMatchObject({ tag: 'soon', status: 'ready', branched_from: id });
  truncateSync(`${daemon.data}/snapshots/soon/device.state`);
  expect(await ask('wait', 'soon')).toMatchObject({ code: 1, stdout: expect.stringContaining('status: failed') });
  expect((await ask('rmi', 'soon')).code).toBe(0);
  expect((await ask('wait', 'soon')).code).toBe(3);
});

it('fork --from-sandbox: children that stay and diverge', async () => {
  expect((await ask('fork', '-n', '2')).code).toBe(2);
  const forked = await json('fork', '--from-sandbox', id, '-n', '2', '--tag', 'fork', '-l', 'job=a', '-e', 'A=b');
  const { snapshot, results } = forked as { snapshot: SnapshotInfo; results: { sandbox: SandboxInfo }[] };
  expect(snapshot).toMatchObject({ tag: 'fork', branched_from: id });
  const children = results.map(({ sandbox }) => sandbox.id);
  expect(results.map(({ sandbox }) => sandbox.metadata)).toEqual([{ job: 'a' }, { job: 'a' }]);
  for (const [k, child] of children.entries()) await ask('eval', child, `plan.append(${k})`);
  expect(await Promise.all(children.map((child) => evaluated(child, 'plan')))).toEqual([
    "['begin', 0]",
    "['begin', 1]",
  ]);
  expect(await evaluated(id, 'plan')).toBe("['begin']");
  const shown = await ask('fork', '--from-sandbox', children[0]!);
  expect(shown).toMatchObject({ code: 0, stdout: expect.stringMatching(/^✓ sb-\w+\n$/) });
  expect((await ask('kill', '--tag', 'fork')).code).toBe(0);
  expect((await ask('kill', shown.stdout.slice(2).trim())).code).toBe(0);
  expect((await ask('rmi', '--cascade', 'fork')).code).toBe(0);
});

it('rollback, promote and diff', async () => {
  const spawned = (await json('spawn', '--tag', 'warm', '--guest-branch', '--max-forks', '3')) as SandboxInfo[];
  const { id: source, guest_branch, max_forks } = spawned[0]!;
  expect([guest_branch, max_forks?.count]).toEqual([true, 3]);
  await ask('exec', source, '--', 'sh', '-c', 'echo one > /root/note');
  expect((await ask('snapshot', '--from-sandbox', source, '--tag', 'one', '--live')).code).toBe(0);
  await ask('exec', source, '--', 'sh', '-c', 'echo twelve > /root/note; touch /root/more');

  const shown = await ask('diff', 'one', source);
  expect([shown.code, shown.stderr]).toEqual([0, '']);
  expect(shown.stdout).toMatch(/^\+ \/root\/more {2}0 B$/m);
  expect(shown.stdout).toMatch(/^~ \/root\/note {2}4 B -> 7 B$/m);
  expect(shown.stdout).toMatch(/\d+ of \d+ pages of memory differ/);
  expect((await ask('diff', 'one', 'absent')).code).toBe(3);

  const note = async (): Promise<string> => (await ask('exec', source, '--', 'cat', '/root/note')).stdout;
  const back = await ask('rollback', source, '--to', 'one');
  expect(back).toMatchObject({ code: 0, stdout: `✓ ${source} is at one again\n` });
  expect(await note()).toBe('one\n');
  expect(await json('rollback', source, '--to', 'warm')).toMatchObject({ id: source, snapshot_tag: 'warm' });
  expect((await ask('rollback', source, '--to', 'absent')).code).toBe(3);

  // What a program makes from inside, as a child.
  const made = await ask('exec', source, '--', 'forkd-guest', 'branch', '--fork', '1', '--tag', 'inside');
  const child = /^source inside (sb-\w+)\n$/.exec(made.stdout)![1]!;
  await ask('exec', child, '--', 'sh', '-c', 'echo child > /root/note');
  expect(await ask('promote', child)).toMatchObject({ code: 0, stdout: `✓ ${child} is ${source} now\n` });
  expect(await note()).toBe('child\n');
  expect((await ask('promote', source)).code).toBe(4);
  expect((await ask('promote', child)).code).toBe(3);
  expect((await ask('kill', source)).code).toBe(0);
  expect((await ask('rmi', 'inside', 'one')).code).toBe(0);
});

it('retain and gc', async () => {
  expect((await ask('gc')).stdout).toBe('nothing is to be removed\n');
  for (const tag of ['brief', 'pinned']) await ask('snapshot', '--from-sandbox', id, '--tag', tag, '--live');
  const kept = await ask('retain', 'brief', '--ttl-secs', '1');
  expect(kept).toMatchObject({ code: 0, stdout: expect.stringContaining('brief') });
  expect(await json('retain', 'pinned', '--pin', '--ttl-secs', '1')).toMatchObject({
    pinned: true,
    expires_at_unix: expect.any(Number),
  });
  expect((await ask('retain', 'pinned')).code).toBe(2);
  expect((await ask('retain', 'pinned', '--pin', '--unpin')).code).toBe(2);
  expect((await ask('retain', 'absent', '--pin')).code).toBe(3);
  await new Promise((done) => setTimeout(done, 1100));
  expect(await json('gc', '--dry-run')).toMatchObject({ dry_run: true, removed: [{ tag: 'brief' }] });
  const removed = await ask('gc');
  expect(removed.stdout).toMatch(/^TAG +SIZE +WHY\nbrief +\S+ \S+ +its time is up\n\S+ \S+ freed\n$/);
  const loose = await json('retain', 'pinned', '--unpin', '--no-ttl');
  expect(loose).toMatchObject({ tag: 'pinned' });
  expect(loose).not.toMatchObject({ expires_at_unix: expect.any(Number) });
  expect((await json('gc')) as object).toMatchObject({ removed: [] });
  expect((await ask('rmi', 'pinned')).code).toBe(0);
});

it('snapshot-diff, snapshot-compact, snapshot-info and lineage', async () => {
  const failed = await ask('snapshot-diff', '--from', 'warm', '--tag', 'broken', '--exec', 'echo no >&2; exit 3');
  expect(failed).toMatchObject({ code: 1, stderr: expect.stringContaining('ended with 3: no') });
  const made = await json('snapshot-diff', '--from', 'warm', '--tag', 'noted', '--exec', 'echo yes > /root/note');
  expect(made).toMatchObject({ tag: 'noted', status: 'ready', diff_physical_bytes: expect.any(Number) });
  expect(await json('snapshot-info', 'noted')).toMatchObject({ parent_tag: 'warm', chain_depth: 1 });
  expect(await json('snapshot-compact', '--from', 'noted', '--to', 'flat')).toMatchObject({
    branched_from: 'compact:noted',
  });
  expect((await ask('rmi', 'noted')).code).toBe(0);
  const [child] = (await json('spawn', '--tag', 'flat')) as SandboxInfo[];
  expect((await ask('exec', child!.id, '--', 'cat', '/root/note')).stdout).toBe('yes\n');
  expect((await ask('kill', child!.id)).code).toBe(0);
  expect((await ask('rmi', 'flat')).code).toBe(0);
});

it('workspaces are created, suspended, resumed, listed and deleted', async () => {
  const made = (await json('workspace', 'create', 'desk', '--snapshot', 'warm')) as { live_sandbox_id: string };
  await ask('eval', made.live_sandbox_id, 'page = 7');
  expect((await ask('workspace', 'suspend', 'desk')).stdout).toMatch(/^desk {2}suspended {2}source=warm {2}state=ws-/);
  expect((await ask('workspace', 'suspend', 'desk')).code).toBe(4);
  const resumed = (await json('workspace', 'resume', 'desk')) as { live_sandbox_id: string };
  expect(await evaluated(resumed.live_sandbox_id, 'page')).toBe('7');
  expect(await json('workspace', 'list')).toMatchObject([{ name: 'desk', status: 'running' }]);
  expect((await ask('workspace', 'delete', 'desk')).code).toBe(0);
  expect((await ask('workspace', 'delete', 'desk')).code).toBe(3);
});

it('bench measures a branch too, and leaves nothing', async () => {
  const { code, stdout } = await ask('bench', '--tag', 'warm', '-n', '2', '-r', '1', '--json');
  const { steps, notes } = JSON.parse(stdout) as { steps: { step: string }[]; notes: string[] };
  expect([code, notes]).toEqual([0, []]);
  expect(steps.map(({ step }) => step)).toEqual(['spawn 1', 'ping', 'exec', 'eval', 'branch', 'spawn 2', 'kill 3']);
  expect(((await json('images')) as SnapshotInfo[]).map(({ tag }) => tag)).toEqual(['warm']);
  expect(((await json('ls')) as SandboxInfo[]).map((info) => info.id)).toEqual([id]);
});

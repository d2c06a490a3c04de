import { on, once } from 'node:events';
import type { SandboxInfo } from '@forkd/protocol';
import { startTestDaemon, type TestDaemon } from '@forkd/sdk/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { finished, forkd, type Ran, startForkd } from './testing.js';

let daemon: TestDaemon;
let env: NodeJS.ProcessEnv;
let id: string;

beforeAll(async () => {
  daemon = await startTestDaemon();
  env = { FORKD_URL: daemon.url, FORKD_TOKEN: daemon.token };
  const made = await ask('snapshot', '--tag', 'warm', '--recipe', 'python-numpy');
  expect(made).toMatchObject({ code: 0, stdout: expect.stringContaining('tag: warm') });
  expect(made.stderr).toMatch(/^warm: boot/m);
  id = ((await json('spawn', '--tag', 'warm')) as SandboxInfo[])[0]!.id;
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

describe('what is there', () => {
  it('images, snapshot-info and ls show it as tables and as JSON', async () => {
    expect((await ask('images')).stdout).toMatch(/^TAG +STATUS +SIZE .*\nwarm +ready +[\d.]+ MiB/);
    expect(await json('images')).toMatchObject([{ tag: 'warm', size_bytes: expect.any(Number) }]);
    expect((await ask('snapshot-info', 'warm')).stdout).toMatch(/^memory +[\d.]+ MiB of 256.0 MiB$/m);
    expect(await json('snapshot-info', 'warm')).toMatchObject({ tag: 'warm', sandboxes: [id] });
    expect((await ask('ls')).stdout).toMatch(new RegExp(`^ID +SNAPSHOT .*\n${id} +warm +running`));
    expect((await ask('ls', '-q')).stdout).toBe(`${id}\n`);
    expect(await json('ls', '--tag', 'warm')).toMatchObject([{ id }]);
    expect(await json('completion', '--list', 'tags')).toEqual(['warm']);
  });

  it('what is not there has exit code 3, what is taken 4, a wrong token 5', async () => {
    expect((await ask('snapshot-info', 'absent')).code).toBe(3);
    expect((await ask('ping', 'sb-00000000000000000000')).code).toBe(3);
    expect((await ask('snapshot', '--tag', 'x', '--recipe', 'absent')).code).toBe(3);
    expect((await ask('snapshot', '--tag', 'warm', '--recipe', 'python-numpy')).code).toBe(4);
    const wrong = await forkd(['ls'], { env: { ...env, FORKD_TOKEN: 'x'.repeat(20) } });
    expect(wrong).toMatchObject({ code: 5, stderr: expect.stringContaining('hint: ') });
  });

  it('a sandbox becomes a snapshot', async () => {
    expect(await json('snapshot', '--from-sandbox', id, '--tag', 'b')).toMatchObject({ tag: 'b', branched_from: id });
    expect((await ask('rmi', 'b')).code).toBe(0);
    expect(await json('workspace', 'list')).toEqual([]);
  });
});

describe('states', () => {
  it('pause and resume; a paused sandbox says so with exit code 4', async () => {
    expect(await ask('pause', id)).toMatchObject({ code: 0, stdout: `✓ ${id}\n` });
    expect(await json('ls', '--state', 'paused')).toMatchObject([{ id, state: 'paused' }]);
    expect((await ask('exec', id, '--', 'true')).code).toBe(4);
    expect(await json('resume', id)).toEqual([{ id, ok: true }]);
    expect((await ask('exec', id, '--', 'true')).code).toBe(0);
  });

  it('labels and environment are given at spawn, and found again', async () => {
    const made = (await json('spawn', '--tag', 'warm', '-l', 'team=a', '-e', 'GREETING=hi there')) as SandboxInfo[];
    const [labelled] = made;
    expect((await ask('ls', '-q', '-l', 'team=a')).stdout).toBe(`${labelled!.id}\n`);
    expect((await ask('exec', labelled!.id, '--', 'sh', '-c', 'echo $GREETING')).stdout).toBe('hi there\n');
    expect((await ask('kill', labelled!.id)).code).toBe(0);
  });

  it('limits are given at spawn, and a snapshot is shared', async () => {
    const limits = ['--cpu-limit', '0.5', '--cpu-weight', '50', '--pids-limit', '64', '--write-bps-limit', '1000000'];
    const made = (await json('spawn', '--tag', 'warm', ...limits)) as SandboxInfo[];
    expect(made[0]).toMatchObject({ cpu_limit: 0.5, cpu_weight: 50, pids_limit: 64, write_bps_limit: 1_000_000 });
    await ask('kill', made[0]!.id);
    expect(await json('share', 'warm', '--with', 'ann', '--with', 'bob')).toMatchObject({
      shared_with: ['ann', 'bob'],
    });
    expect((await ask('share', 'warm', '--all')).stdout).toContain('everybody');
    expect((await ask('share', 'warm', '--none')).stdout).toContain('nobody');
    expect((await ask('share', 'warm')).code).toBe(2);
  });

  it('recipes and lineage are listed', async () => {
    expect((await ask('recipes')).stdout).toMatch(/^python-numpy +python/m);
    expect((await ask('lineage')).stdout).toMatch(new RegExp(`^warm  snapshot, ready.*\n└─ ${id}  sandbox, running`));
    expect(await json('lineage')).toEqual(
      expect.arrayContaining([expect.objectContaining({ kind: 'sandbox', name: id, parent: 'warm' })]),
    );
  });

  it('events show what happens from now on, a line each', async () => {
    const child = startForkd(['events', '--json', '--type', 'paused', '--type', 'resumed'], env);
    const ran = finished(child);
    const lines = on(child.stdout!.setEncoding('utf8'), 'data');
    await expect
      .poll(async () => {
        await ask('pause', id);
        await ask('resume', id);
        return child.stdout!.readableFlowing;
      })
      .toBe(true);
    const [first] = (await lines.next()).value as [string];
    expect(JSON.parse(first.split('\n')[0]!)).toMatchObject({ sandbox_id: id, snapshot_tag: 'warm' });
    child.kill('SIGINT');
    expect((await ran).code).toBe(130);
  });
});

describe('programs', () => {
  it('exec passes output, exit code and standard input', async () => {
    expect(await ask('exec', id, '--', 'sh', '-c', 'echo out; echo err >&2; exit 7')).toEqual({
      ...{ code: 7, stdout: 'out\n', stderr: 'err\n' },
    });
    expect(await ask('exec', '--child', id, 'echo', 'hi')).toMatchObject({ code: 0, stdout: 'hi\n' });
    expect(await forkd(['exec', id, '--', 'cat'], { env, input: 'héllo' })).toMatchObject({ code: 0, stdout: 'héllo' });
    expect(await ask('exec', id, '-e', 'A=b c', '--cwd', '/tmp', '--', 'sh', '-c', 'pwd; echo $A')).toMatchObject({
      stdout: '/tmp\nb c\n',
    });
  });

  it('exec --json gives one object and the same exit code', async () => {
    const { code, stdout } = await ask('exec', id, '--json', '--', 'sh', '-c', 'echo out; exit 3');
    expect([code, JSON.parse(stdout)]).toMatchObject([3, { stdout: 'out\n', exit_code: 3, timed_out: false }]);
  });

  it('a program that takes too long ends with 124', async () => {
    const { code, stderr } = await ask('exec', id, '--timeout-secs', '1', '--', 'sleep', '60');
    expect([code, stderr]).toEqual([124, expect.stringContaining('--timeout-secs')]);
  });

  it('Ctrl-C ends the program in the sandbox too, with 130', async () => {
    const child = startForkd(['exec', id, '--no-stdin', '--timeout-secs', '600', '--', 'sleep', '4712'], env);
    const ran = finished(child);
    await expect.poll(() => sleeping('4712'), { timeout: 15_000 }).toBe('1');
    child.kill('SIGINT');
    expect((await ran).code).toBe(130);
    await expect.poll(() => sleeping('4712'), { timeout: 15_000 }).toBe('0');
  });

  it('eval keeps its state, and an exception is exit code 1 with its traceback', async () => {
    expect(await ask('eval', id, '--', 'x = 20')).toMatchObject({ code: 0 });
    expect(await ask('eval', id, 'x + 1')).toEqual({ code: 0, stdout: '21\n', stderr: '' });
    expect(await forkd(['eval', id, '-'], { env, input: 'x + 2' })).toMatchObject({ stdout: '22\n' });
    expect(await ask('eval', id, 'nonsense')).toMatchObject({ code: 1, stderr: expect.stringContaining('NameError') });
    expect(await json('eval', id, 'x')).toMatchObject({ result: '20', error: null });
  });

  it('ping answers', async () => {
    expect((await ask('ping', id)).stdout).toMatch(/^✓ sb-.* answered in/);
    expect(await json('ping', '--child', id)).toMatchObject({ pong: true, round_trip_ms: expect.any(Number) });
  });

  it('run starts a sandbox, exits with the code of the program and leaves nothing', async () => {
    expect(await ask('run', '--tag', 'warm', '--', 'sh', '-c', 'hostname >/dev/null && exit 9')).toMatchObject({
      code: 9,
    });
    expect(await json('ls')).toHaveLength(1);
  });

  async function sleeping(secs: string): Promise<string> {
    const count = `cat /proc/[0-9]*/cmdline | tr "\\0" " " | grep -c "sleep ${secs[0]}[${secs[1]}]${secs.slice(2)}"`;
    return (await ask('exec', id, '--', 'sh', '-c', count)).stdout.trim();
  }
});

describe('many', () => {
  it('fork shows how long it took and ends what it started', async () => {
    const { code, stdout } = await ask('fork', '--tag', 'warm', '-n', '3', '--settle-secs', '0');
    expect([code, stdout]).toEqual([0, expect.stringMatching(/total wall clock +[\d.]+ m?s\n.*alive +3 of 3/s)]);
    expect(await json('ls')).toHaveLength(1);
  });

  it('a fork that is interrupted leaves nothing', async () => {
    const child = startForkd(['fork', '--tag', 'warm', '-n', '2', '--settle-secs', '600'], env);
    const ran = finished(child);
    await once(child.stderr!, 'data');
    child.kill('SIGINT');
    expect((await ran).code).toBe(130);
    expect(await json('ls')).toHaveLength(1);
  });

  it('kill ends some, all of a tag, and says which were not there', async () => {
    const [a, b] = (await json('spawn', '--tag', 'warm', '-n', '2')) as SandboxInfo[];
    expect(await ask('kill', a!.id)).toMatchObject({ code: 0, stdout: `✓ ${a!.id}\n` });
    const { code, stdout } = await ask('kill', a!.id, b!.id, '--json');
    expect([code, JSON.parse(stdout)]).toMatchObject([
      3,
      [
        { id: a!.id, ok: false, error: { code: 'sandbox_not_found' } },
        { id: b!.id, ok: true },
      ],
    ]);
  });

  it('bench measures and leaves nothing', async () => {
    const report = await forkd(['bench', '-n', '2', '-r', '2', '--json'], { env });
    expect(JSON.parse(report.stdout).steps).toEqual(
      expect.arrayContaining([expect.objectContaining({ step: 'spawn 2', samples: 2, p50_ms: expect.any(Number) })]),
    );
    expect(await json('ls')).toHaveLength(1);
    expect(await json('images')).toHaveLength(1);
  });
});

describe('around it', () => {
  it('doctor checks the host and the daemon', async () => {
    const { code, stdout } = await ask('doctor');
    expect([code, stdout]).toEqual([0, expect.stringMatching(/^✓ platform .*pass=\d+ warn=\d+ fail=0 skip=\d+\n$/s)]);
    expect(JSON.parse((await ask('doctor', '--json')).stdout).checks).toEqual(
      expect.arrayContaining([expect.objectContaining({ name: 'daemon', status: 'pass' })]),
    );
  });

  it('network shows a policy and replaces it; secrets come from standard input and are not shown', async () => {
    const flags = ['--allow', 'a.example:443', '--deny', '10.0.0.0/8'];
    expect(await json('network', id, ...flags)).toMatchObject({
      allow: ['a.example:443'],
      deny: ['10.0.0.0/8'],
      rules: {},
    });
    const rules = '{"a.example": {"headers": {"x-key": "never-seen"}}}';
    const { code, stdout } = await forkd(['network', id, ...flags, '--rules', '-'], { env, input: rules });
    expect([code, stdout]).toEqual([0, expect.stringMatching(/^headers +a\.example: x-key$/m)]);
    expect(stdout).not.toContain('never-seen');
    const [spawned] = (await json('spawn', '--tag', 'warm', '--preset', 'internet')) as [SandboxInfo];
    expect(spawned.network).toEqual({ preset: 'internet', allow: [], deny: [] });
    expect(await ask('kill', spawned.id)).toMatchObject({ code: 0 });
    expect(await ask('network', id, '--allow', '10.0.0.1/8')).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('10.0.0.0/8'),
    });
    const bad = await forkd(['network', id, '--rules', '-'], { env, input: '{"secret' });
    expect(bad.code).toBe(2);
    expect(bad.stderr).not.toContain('secret');
  });

  it('a reader that goes away is no error message', async () => {
    const child = startForkd(['exec', id, '--no-stdin', '--', 'sh', '-c', 'yes | head -c 2000000'], env);
    child.stdout!.once('data', () => child.stdout!.destroy());
    expect(await finished(child)).toMatchObject({ code: 141, stderr: '' });
  });

  it('output that is not a terminal has no colours and no bars', async () => {
    for (const args of [['images'], ['ls'], ['fork', '--tag', 'warm', '--settle-secs', '0'], ['ls', '--bad']]) {
      const { stdout, stderr } = await ask(...args);
      expect(stdout + stderr).not.toContain('\u001b');
    }
  });

  it('cleanup shows, and removes nothing unless told to', async () => {
    expect(await json('cleanup')).toMatchObject({ image_cache: { size_bytes: expect.any(Number) } });
    expect(await json('ls')).toHaveLength(1);
  });

  it('quickstart refuses to change anything unasked, and shows the way with --yes', async () => {
    const refused = await ask('quickstart');
    expect(refused).toMatchObject({ code: 5, stderr: expect.stringContaining('--yes') });
    expect(refused.stderr).toContain('make the snapshot quickstart');
    const done = await ask('quickstart', '--yes', '-n', '2');
    expect(done).toMatchObject({ code: 0, stdout: expect.stringContaining('1 + 1 = 2') });
    expect(await json('ls', '--tag', 'quickstart')).toHaveLength(1);
    expect(await ask('kill', '--tag', 'quickstart')).toMatchObject({ code: 0 });
    expect(await ask('rmi', 'quickstart')).toMatchObject({ code: 0, stdout: '✓ quickstart\n' });
  });
});

import { afterAll, beforeAll, expect, it } from 'vitest';
import { all, Forkd } from './index.js';
import { startTestDaemon, type TestDaemon } from './testing.js';

let daemon: TestDaemon;
let client: Forkd;

beforeAll(async () => {
  daemon = await startTestDaemon();
  client = new Forkd(daemon);
  await client.snapshots.create({ tag: 'warm', recipe: 'python-numpy' });
});
afterAll(async () => {
  client?.close();
  await daemon?.stop();
});

it('asks the daemon about itself', async () => {
  expect(await client.health()).toEqual({ ok: true });
  expect(await client.version()).toMatchObject({ api: 'v1' });
  expect(await client.metrics()).toContain('forkd_snapshots_total 1');
});

it('lists and describes snapshots', async () => {
  expect(await client.snapshots.list()).toMatchObject([{ tag: 'warm', recipe: 'python-numpy' }]);
  expect(await client.snapshots.get('warm')).toMatchObject({ status: 'ready' });
  expect((await client.snapshots.info('warm')).memory_logical_bytes).toBeGreaterThan(0);
});

it('spawns, runs programs, evaluates and ends a sandbox', async () => {
  const [sandbox] = await client.sandboxes.spawn({ snapshot_tag: 'warm', env: { GREETING: 'hello' } });
  expect(await sandbox!.ping()).toMatchObject({ pong: true });
  expect(await sandbox!.exec(['sh', '-c', 'cat; exit 3'], { stdin: 'in' })).toMatchObject({
    stdout: 'in',
    exit_code: 3,
  });
  expect((await sandbox!.eval('numpy.zeros(2).tolist()')).result).toBe('[0.0, 0.0]');
  expect((await sandbox!.eval('nonsense')).error).toContain('NameError');
  expect((await all(client.sandboxes.list())).map(({ id }) => id)).toEqual([sandbox!.id]);
  await sandbox!.kill();
  await sandbox!.kill();
  await expect(client.sandboxes.get(sandbox!.id)).rejects.toMatchObject({ code: 'sandbox_not_found' });
});

it('gives the output of a program piece by piece and its exit at the end', async () => {
  await using sandbox = (await client.sandboxes.spawn({ snapshot_tag: 'warm' }))[0]!;
  const pieces = await all(sandbox.execStream(['sh', '-c', 'echo out; echo err >&2; exit 7']));
  const text = (type: string): string =>
    pieces.map((piece) => (piece.type === type && 'data' in piece ? Buffer.from(piece.data).toString() : '')).join('');
  expect([text('stdout'), text('stderr')]).toEqual(['out\n', 'err\n']);
  expect(pieces.at(-1)).toMatchObject({ type: 'exit', exit_code: 7 });
});

it('a block ends its sandbox', async () => {
  let id: string;
  {
    await using sandbox = (await client.sandboxes.spawn({ snapshot_tag: 'warm' }))[0]!;
    id = sandbox.id;
  }
  expect((await all(client.sandboxes.list())).map((info) => info.id)).not.toContain(id);
});

it('reports each child of a settled spawn', async () => {
  const results = await client.sandboxes.spawnSettled({ snapshot_tag: 'warm', n: 2 });
  expect(results).toHaveLength(2);
  for (const result of results) {
    expect(result).toHaveProperty('sandbox');
    if ('sandbox' in result) await result.sandbox.kill();
  }
});

it('an aborted call ends the program in the guest', async () => {
  await using sandbox = (await client.sandboxes.spawn({ snapshot_tag: 'warm' }))[0]!;
  const signal = AbortSignal.timeout(300);
  await expect(sandbox.exec(['sleep', '4711'], { signal })).rejects.toMatchObject({ code: 'cancelled' });
  await expect
    .poll(
      async () =>
        (
          await sandbox.exec(['sh', '-c', 'cat /proc/[0-9]*/cmdline | tr "\\0" " " | grep -c "sleep 47[1]1"'])
        ).stdout.trim(),
      {
        timeout: 10_000,
      },
    )
    .toBe('0');
});

it('carries the error of the daemon: code, hint, request id', async () => {
  await expect(client.sandboxes.spawn({ snapshot_tag: 'absent' })).rejects.toMatchObject({
    code: 'snapshot_not_found',
    status: 404,
    hint: expect.stringMatching(/./),
    details: { request_id: expect.stringMatching(/./) },
  });
  expect(await client.workspaces.list()).toEqual([]);
  await expect(new Forkd({ ...daemon, token: 'x'.repeat(20) }).version()).rejects.toMatchObject({
    code: 'unauthenticated',
  });
});

it.each(['../snapshots', 'a/b', 'x?y', '%2e%2e', '', 'a\0', 'sb-0000000000000000000/'])(
  'the name %j never gets into a path',
  async (name) => {
    await expect(client.snapshots.get(name)).rejects.toMatchObject({ code: 'invalid_request' });
    await expect(client.sandboxes.get(name)).rejects.toMatchObject({ code: 'invalid_request' });
  },
);

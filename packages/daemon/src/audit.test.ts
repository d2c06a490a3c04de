import { chmodSync, existsSync, mkdtempSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { TestDaemon } from './testing.js';

const TOKEN = 'a-token-that-is-long-enough';
const SANDBOX = 'sb-00000000000000000000';
const root = mkdtempSync(`${tmpdir()}/forkd-audit-`);
const log = `${root}/audit.log`;
const Line = z.strictObject({
  ts: z.iso.datetime({ precision: 3 }),
  method: z.string().max(32),
  path: z.string().max(1024),
  status: z.number().int(),
  latency_us: z.number().int().nonnegative(),
  ua: z.string().max(256),
  remote: z.string().max(64),
  token: z.string().nullable(),
  request_id: z.uuid(),
  sandbox: z.string().optional(),
  snapshot: z.string().optional(),
  outcome: z.string(),
});

function lines(file = log): z.infer<typeof Line>[] {
  const text = readFileSync(file, 'utf8');
  expect(text.endsWith('\n')).toBe(true);
  return text
    .trimEnd()
    .split('\n')
    .map((line) => Line.parse(JSON.parse(line)));
}

let daemon: TestDaemon;
beforeAll(async () => {
  writeFileSync(`${root}/token`, TOKEN, { mode: 0o600 });
  // A log that a crash has cut in the middle of a line, with a mode that is too wide.
  writeFileSync(log, '{"ts":"2026-');
  chmodSync(log, 0o644);
  daemon = await TestDaemon.start(['--token-file', `${root}/token`, '--audit-log', log, '--audit-max-mb', '1']);
});
afterAll(async () => {
  await daemon[Symbol.asyncDispose]();
  rmSync(root, { recursive: true });
});

describe('the audit log', () => {
  it('is for its owner alone, and goes on after a line that was cut', async () => {
    await daemon.call('/version', { token: TOKEN });
    await expect.poll(() => readFileSync(log, 'utf8').split('\n').length).toBe(3);
    const [cut, line] = readFileSync(log, 'utf8').split('\n');
    expect(cut).toBe('{"ts":"2026-');
    expect(Line.parse(JSON.parse(line!))).toMatchObject({ path: '/version', outcome: 'ok' });
    expect(statSync(log).mode & 0o777).toBe(0o600);
    rmSync(log);
    await daemon.reload();
  });

  it('has a line for every request, whatever became of it, and no secret', async () => {
    const before = Date.now();
    await daemon.call('/healthz');
    await daemon.call('/version?secret=1', { token: TOKEN, headers: { 'user-agent': 'test "1"\u00e9' } });
    await daemon.call('/version');
    await daemon.call('/nowhere', { token: TOKEN });
    await daemon.call('/v1/%zz', { token: TOKEN });
    const { body } = await daemon.call(`/v1/sandboxes/${SANDBOX}`, { token: TOKEN });
    await daemon.call('/v1/snapshots/absent', { token: TOKEN, method: 'DELETE' });
    await daemon.call('/v1/sandboxes', { token: TOKEN, method: 'POST', body: '{"secret":"in the body"}' });
    await expect.poll(() => lines().length).toBe(8);
    const got = lines().map(({ method, path, status, token, outcome }) => [method, path, status, token, outcome]);
    expect(got).toEqual([
      ['GET', '/healthz', 200, null, 'ok'],
      ['GET', '/version', 200, 'default', 'ok'],
      ['GET', '/version', 401, null, 'unauthenticated'],
      ['GET', '/nowhere', 404, 'default', 'route_not_found'],
      ['GET', '/v1/%zz', 400, 'default', 'invalid_request'],
      ['GET', `/v1/sandboxes/${SANDBOX}`, 404, 'default', 'sandbox_not_found'],
      ['DELETE', '/v1/snapshots/absent', 404, 'default', 'snapshot_not_found'],
      ['POST', '/v1/sandboxes', 400, 'default', 'invalid_request'],
    ]);
    const all = lines();
    expect(all[5]).toMatchObject({ sandbox: SANDBOX, request_id: body.request_id, remote: '127.0.0.1' });
    expect(all[6]).toMatchObject({ snapshot: 'absent' });
    expect(readFileSync(log, 'utf8')).not.toMatch(/secret|a-token/);
    // Bug class 21: times are whole, in order, and those of the requests.
    const times = all.map(({ ts }) => Date.parse(ts));
    expect(times).toEqual([...times].sort((a, b) => a - b));
    expect(times[0]).toBeGreaterThanOrEqual(before - 1);
    expect(times.at(-1)).toBeLessThanOrEqual(Date.now());
  });

  it('does not grow with what a client sends', async () => {
    await daemon.call(`/${'x'.repeat(8000)}`, { headers: { 'user-agent': 'y'.repeat(5000) } });
    await expect.poll(() => lines().at(-1)!.path.length).toBe(1024);
    expect(lines().at(-1)!.ua.length).toBe(256);
  });

  it('goes on in a new file when it was moved away', async () => {
    renameSync(log, `${log}.moved`);
    await daemon.reload();
    await daemon.call('/version', { token: TOKEN });
    await expect.poll(() => lines().length).toBe(1);
    rmSync(`${log}.moved`);
  });

  it('is rotated by size, and five old ones are kept', async () => {
    for (let round = 0; round < 6; round++) {
      // Fill the file to just below its limit, as if by many requests.
      writeFileSync(log, `${'x'.repeat((1 << 20) - 2)}\n`, { mode: 0o600 });
      await daemon.reload();
      await daemon.call('/version', { token: TOKEN });
      await expect.poll(() => lines().length).toBe(1);
    }
    for (const age of [1, 2, 3, 4, 5]) expect(statSync(`${log}.${age}`).size).toBe((1 << 20) - 1);
    expect(existsSync(`${log}.6`)).toBe(false);
    expect(statSync(log).mode & 0o777).toBe(0o600);
  });
});

it('a full disk stops the audit log but not the daemon, and is said once', async () => {
  await using full = await TestDaemon.start(['--audit-log', '/dev/full']);
  for (let i = 0; i < 5; i++) expect((await full.call('/version')).status).toBe(200);
  await full.prints(/cannot be written/);
  expect(full.log.match(/cannot be written/g)!.length).toBe(1);
});

it('a log that cannot be opened is refused at the start', async () => {
  await using refused = TestDaemon.launch(['--audit-log', '/proc/nowhere/audit.log']);
  expect(await refused.ended()).toBe(1);
  expect(refused.log).toMatch(/cannot write the audit log.*\nhint: .*--audit-log/);
});

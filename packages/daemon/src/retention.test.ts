import type { SnapshotInfo } from '@forkd/protocol';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Answer, TestDaemon } from './testing.js';

let daemon: TestDaemon;

beforeAll(async () => {
  daemon = await TestDaemon.plain('--keep-last', '2');
});

afterAll(() => daemon.stop());

const say = (method: string, path: string, body?: object): Promise<Answer> => daemon.say(method, path, body);

const spawn = (tag: string): Promise<string> => daemon.spawn(tag);

async function gc(body: object): Promise<string[]> {
  const reply = await say('POST', '/v1/gc', body);
  expect(reply.status, JSON.stringify(reply.body)).toBe(200);
  for (const { bytes, why } of reply.body.removed) expect([bytes > 0, why]).toEqual([true, expect.any(String)]);
  return reply.body.removed.map(({ tag }: { tag: string }) => tag);
}

async function tags(): Promise<string[]> {
  return (await say('GET', '/v1/snapshots')).body.map(({ tag }: SnapshotInfo) => tag).sort();
}

const keep = (tag: string, change: object): Promise<Answer> => say('PATCH', `/v1/snapshots/${tag}`, change);

it('what is not to be kept is named first, then removed, and nothing else is', async () => {
  const id = await spawn('plain');
  for (const n of [1, 2, 3, 4, 5])
    expect((await say('POST', `/v1/sandboxes/${id}/branch`, { tag: `b${n}`, ttl_secs: 3600 })).status).toBe(201);
  expect(await gc({ dry_run: true })).toEqual(['b1', 'b2', 'b3']);
  expect(await tags()).toEqual(['b1', 'b2', 'b3', 'b4', 'b5', 'plain']);
  const pinned = await keep('b1', { pinned: true, ttl_secs: null });
  expect([pinned.status, pinned.body.pinned, pinned.body.expires_at_unix]).toEqual([200, true, undefined]);
  const child = await spawn('b2');
  expect(await gc({})).toEqual(['b3']);
  expect(await tags()).toEqual(['b1', 'b2', 'b4', 'b5', 'plain']);
  await say('DELETE', `/v1/sandboxes/${child}`);

  // Pins and times outlive the daemon; so does what they say.
  const short = await keep('b5', { ttl_secs: 1 });
  expect(short.body.expires_at_unix).toBeGreaterThan(0);
  daemon.signal('SIGTERM');
  expect(await daemon.ended()).toBe(0);
  await new Promise((done) => setTimeout(done, 1100));
  daemon = await TestDaemon.start(['--recipes', `${daemon.root}/recipes`, '--branch-disk-mb', '1'], daemon.root);
  expect((await gc({ dry_run: true })).sort()).toEqual(['b2', 'b4', 'b5']);
  expect((await gc({ dry_run: false })).sort()).toEqual(['b2', 'b4', 'b5']);
  expect(await tags()).toEqual(['b1', 'plain']);
  await keep('b1', { pinned: false });
  expect(await gc({})).toEqual([]);
});

it('what is not to be kept goes by itself', async () => {
  daemon.signal('SIGTERM');
  expect(await daemon.ended()).toBe(0);
  daemon = await TestDaemon.start(['--recipes', `${daemon.root}/recipes`, '--gc-secs', '1'], daemon.root);
  const id = await spawn('plain');
  for (const [tag, change] of [
    ['short', { ttl_secs: 1 }],
    ['long', { ttl_secs: 3600 }],
    ['kept', {}],
  ] as const)
    expect((await say('POST', `/v1/sandboxes/${id}/branch`, { tag, ...change })).status).toBe(201);
  await keep('kept', { ttl_secs: 1, pinned: true });
  await expect.poll(tags, { timeout: 5000 }).not.toContain('short');
  expect(await tags()).toEqual(expect.arrayContaining(['long', 'kept', 'plain']));
});

it('branches in flight are branches, and nothing else', async () => {
  const inFlight = async (): Promise<string> =>
    /^forkd_branches_in_flight (\d+)$/m.exec((await say('GET', '/metrics')).text)![1]!;
  const most = async (work: Promise<Answer>): Promise<string> => {
    const seen = new Set<string>();
    for (let done = false; !done; seen.add(await inFlight()))
      done = await Promise.race([
        work.then(() => true),
        new Promise<boolean>((tick) => setImmediate(() => tick(false))),
      ]);
    return [...seen].sort().at(-1)!;
  };
  const id = await spawn('plain');
  expect(await most(say('POST', `/v1/sandboxes/${id}/branch`, { tag: 'counted', mode: 'full' }))).toBe('1');
  expect(await most(say('POST', '/v1/snapshots/counted/compact', { to: 'compacted' }))).toBe('0');
  expect(await inFlight()).toBe('0');
});

it.each([
  ['PATCH', '/v1/snapshots/plain', { ttl_secs: 0 }, 400],
  ['PATCH', '/v1/snapshots/plain', { pinned: 'yes' }, 400],
  ['PATCH', '/v1/snapshots/absent', { pinned: true }, 404],
  ['POST', '/v1/gc', { dry_run: 1 }, 400],
  ['POST', '/v1/gc', { all: true }, 400],
])('%s %s %j is refused', async (method, path, body, status) => {
  expect((await say(method, path, body)).status).toBe(status);
});

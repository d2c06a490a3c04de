import { readdirSync } from 'node:fs';
import type { SandboxInfo } from '@forkd/protocol';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { type Answer, TestDaemon } from './testing.js';

let daemon: TestDaemon;

beforeAll(async () => {
  daemon = await TestDaemon.plain();
});

afterEach(() => daemon.killAll());

afterAll(() => daemon.stop());

const say = (method: string, path: string, body?: object): Promise<Answer> => daemon.say(method, path, body);

const spawn = (snapshot_tag: string, more = {}): Promise<Answer> =>
  say('POST', '/v1/sandboxes', { snapshot_tag, ...more });

const fork = (id: string, more = {}): Promise<Answer> => say('POST', `/v1/sandboxes/${id}/fork`, more);

const childrenOf = ({ body }: Answer): string[] =>
  body.results.map(({ sandbox }: { sandbox: SandboxInfo }) => sandbox.id);

async function first(max_forks: object): Promise<string> {
  const { status, body } = await spawn('plain', { max_forks });
  expect([status, body[0]?.max_forks]).toEqual([201, max_forks]);
  return body[0].id;
}

it('a line has no more forks at one time than it may have, whoever asks and however', async () => {
  const id = await first({ count: 3 });
  const two = await fork(id, { n: 2, tag: 'counted' });
  expect(two.status).toBe(201);
  const [child] = childrenOf(two) as [string];
  expect(two.body.results[0].sandbox.max_forks).toEqual({ count: 3 });
  const before = readdirSync(`${daemon.root}/snapshots`);
  for (const refused of [await fork(id, { n: 2 }), await fork(child, { n: 2 }), await spawn('counted', { n: 2 })]) {
    expect([refused.status, refused.body.code]).toEqual([409, 'budget_exceeded']);
    expect(refused.body.details).toEqual({ line: id, limit: 'count', wanted: 4, most: 3 });
  }
  expect(readdirSync(`${daemon.root}/snapshots`)).toEqual(before);
  // All at once: exactly as many as are left.
  const raced = await Promise.all([1, 2, 3, 4].map(() => spawn('counted')));
  expect(raced.map(({ status }) => status).sort()).toEqual([201, 409, 409, 409]);
  // What has ended counts no more; what does not come from it never did.
  await say('DELETE', `/v1/sandboxes/${child}`);
  expect((await spawn('counted')).status).toBe(201);
  expect((await spawn('plain', { n: 2 })).status).toBe(201);
  expect((await spawn('counted', { max_forks: { count: 99 } })).body.code).toBe('invalid_request');
});

it('generations are counted, also after the daemon was started again', async () => {
  const id = await first({ depth: 2 });
  const [child] = childrenOf(await fork(id)) as [string];
  const [grandchild] = childrenOf(await fork(child)) as [string];
  daemon.signal('SIGKILL');
  await daemon.ended();
  daemon = await TestDaemon.start(['--recipes', `${daemon.root}/recipes`], daemon.root);
  const refused = await fork(grandchild);
  expect(refused.body).toMatchObject({ code: 'budget_exceeded', details: { line: id, limit: 'depth', most: 2 } });
  // It may still be saved, but nobody can be made of that.
  expect((await say('POST', `/v1/sandboxes/${grandchild}/branch`, { tag: 'deep' })).status).toBe(201);
  expect((await spawn('deep')).body.code).toBe('budget_exceeded');
  await say('POST', '/v1/snapshots/deep/compact', { to: 'shallow' });
  expect((await spawn('shallow')).body.code).toBe('budget_exceeded');
  expect((await fork(child)).status).toBe(201);
});

it('a child that is promoted is where its source was', async () => {
  const id = await first({ count: 1, depth: 1 });
  for (let round = 0; round < 2; round++) {
    const [child] = childrenOf(await fork(id)) as [string];
    expect((await fork(id)).body.code).toBe('budget_exceeded');
    expect((await say('POST', `/v1/sandboxes/${child}/promote`)).body.id).toBe(id);
  }
});

it('branches take no more disk than they may', async () => {
  const id = await first({ bytes: 48 << 20 });
  const fill = (): Promise<Answer> =>
    say('POST', `/v1/sandboxes/${id}/exec`, { args: ['sh', '-c', 'head -c 20971520 /dev/urandom > /dev/shm/x'] });
  await fill();
  expect((await say('POST', `/v1/sandboxes/${id}/branch`, { tag: 'fits' })).status).toBe(201);
  const before = readdirSync(`${daemon.root}/snapshots`);
  const refused = await say('POST', `/v1/sandboxes/${id}/branch`, { tag: 'too-much' });
  expect([refused.status, refused.body.code, refused.body.details.limit]).toEqual([409, 'budget_exceeded', 'bytes']);
  expect((await say('POST', '/v1/snapshots/fits/compact', { to: 'too-much' })).body.code).toBe('budget_exceeded');
  expect(readdirSync(`${daemon.root}/snapshots`)).toEqual(before);
  expect((await say('POST', `/v1/sandboxes/${id}/ping`)).status).toBe(200);
  expect((await say('DELETE', '/v1/snapshots/fits')).status).toBe(204);
  expect((await say('POST', `/v1/sandboxes/${id}/branch`, { tag: 'fits-again' })).status).toBe(201);
});

it.each([{ count: -1 }, { depth: 1.5 }, { bytes: '1' }, { width: 1 }, []])('max_forks %j is refused', async (wrong) => {
  expect((await spawn('plain', { max_forks: wrong })).status).toBe(400);
});

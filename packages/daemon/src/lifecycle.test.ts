import { writeFileSync } from 'node:fs';
import { get } from 'node:http';
import { leaks, NO_LEAKS } from '@forkd/controller';
import type { ForkdEvent, SandboxInfo } from '@forkd/protocol';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Answer, plainRecipes, TestDaemon, temporaryData } from './testing.js';

const ADMIN = 'admin-token-0123456789';
const ANN = 'token-of-ann-0123456789';
const EYE = 'token-of-eye-0123456789';
let daemon: TestDaemon;

beforeAll(async () => {
  const root = temporaryData();
  const entries = Object.entries({
    root: ['admin', ADMIN],
    ann: ['user', ANN],
    eye: ['read', EYE],
  });
  const tokens = entries.map(
    ([name, [role, token]]) => `[[token]]\nname="${name}"\nrole="${role}"\ntoken="${token}"\n`,
  );
  writeFileSync(`${root}/tokens.toml`, tokens.join(''), { mode: 0o600 });
  daemon = await TestDaemon.start(['--tokens-file', `${root}/tokens.toml`, '--recipes', plainRecipes(root)], root);
  await say(ANN, 'POST', '/v1/snapshots', { tag: 'plain', recipe: 'plain' });
});

afterAll(async () => {
  for (const { id } of (await say(ADMIN, 'GET', '/v1/sandboxes')).body)
    await say(ADMIN, 'DELETE', `/v1/sandboxes/${id}`);
  daemon.signal('SIGTERM');
  expect(await daemon.ended()).toBe(0);
  expect(leaks(daemon.root)).toEqual(NO_LEAKS);
  await daemon[Symbol.asyncDispose]();
});

function say(token: string, method: string, path: string, body?: object, headers = {}): Promise<Answer> {
  return daemon.call(path, { method, token, headers, ...(body && { body: JSON.stringify(body) }) });
}

async function spawn(body: object = {}, headers = {}): Promise<SandboxInfo[]> {
  const { status, body: sandboxes } = await say(
    ANN,
    'POST',
    '/v1/sandboxes',
    { snapshot_tag: 'plain', ...body },
    headers,
  );
  expect(status, JSON.stringify(sandboxes)).toBe(201);
  return sandboxes;
}

/** Follows the events from now on. */
async function follow(
  token: string,
  query = '',
): Promise<{ until: (type: string) => Promise<ForkdEvent>; stop(): void }> {
  const seen: ForkdEvent[] = [];
  const request = get(`${daemon.url}/v1/events${query}`, { headers: { authorization: `Bearer ${token}` } });
  await new Promise<void>((ready, failed) => {
    request.once('error', failed).once('response', (reply) => {
      expect(reply.headers['content-type']).toContain('text/event-stream');
      reply.on('error', () => {});
      let text = '';
      reply.on('data', (chunk) => {
        const lines = (text + chunk).split('\n');
        text = lines.pop()!;
        for (const line of lines) if (line.startsWith('data: ')) seen.push(JSON.parse(line.slice(6)));
      });
      ready();
    });
  });
  request.on('error', () => {});
  const until = async (type: string): Promise<ForkdEvent> => {
    for (const deadline = Date.now() + 20_000; Date.now() < deadline; ) {
      const event = seen.find((one) => one.type === type);
      if (event) return event;
      await new Promise((done) => setTimeout(done, 20));
    }
    throw new Error(`no ${type} among ${JSON.stringify(seen)}`);
  };
  return { until, stop: () => request.destroy() };
}

describe('snapshots', () => {
  it('wait:false answers 202; until it is ready it cannot be spawned from or removed (documented by forkd, not kept)', async () => {
    const events = await follow(ANN);
    const begun = await say(ANN, 'POST', '/v1/snapshots', { tag: 'later', recipe: 'plain', wait: false });
    expect([begun.status, begun.body.status, begun.body.bootable]).toEqual([202, 'writing', false]);
    for (const [method, path, body] of [
      ['POST', '/v1/sandboxes', { snapshot_tag: 'later' }],
      ['DELETE', '/v1/snapshots/later', undefined],
      ['POST', '/v1/snapshots', { tag: 'later', recipe: 'plain' }],
    ] as const) {
      const refused = await say(ANN, method, path, body);
      expect([method, refused.status, refused.body.error]).toEqual([method, 409, expect.stringContaining('writ')]);
    }
    expect((await events.until('progress')).message).toBeDefined();
    expect(await events.until('created')).toMatchObject({ snapshot_tag: 'later', owner: 'ann' });
    events.stop();
    expect((await say(ANN, 'GET', '/v1/snapshots/later')).body).toMatchObject({ status: 'ready', bootable: true });
    expect((await say(ANN, 'DELETE', '/v1/snapshots/later')).status).toBe(204);
    expect((await say(ANN, 'GET', '/v1/snapshots/later')).status).toBe(404);
  });

  it('bug class 9: of two writers of one tag one wins, and the tag is whole', async () => {
    const both = await Promise.all(
      [1, 2].map(() => say(ANN, 'POST', '/v1/snapshots', { tag: 'race', recipe: 'plain' })),
    );
    expect(both.map(({ status }) => status).sort()).toEqual([201, 409]);
    expect((await say(ANN, 'POST', '/v1/snapshots', { tag: 'race', recipe: 'plain' })).status).toBe(409);
    expect((await say(ANN, 'DELETE', '/v1/snapshots/race')).status).toBe(204);
  });

  it('a client that goes away takes the snapshot it was waiting for along', async () => {
    const events = await follow(ANN);
    const body = JSON.stringify({ tag: 'gone', recipe: 'plain' });
    const signal = AbortSignal.timeout(500);
    await expect(daemon.call('/v1/snapshots', { method: 'POST', token: ANN, body, signal })).rejects.toThrow();
    expect(await events.until('deleted')).toMatchObject({ snapshot_tag: 'gone' });
    events.stop();
    expect((await say(ANN, 'GET', '/v1/snapshots/gone')).status).toBe(404);
  });
});

describe('sandboxes', () => {
  it('have labels, a time to live, filters and pages', async () => {
    const [one] = await spawn({ metadata: { job: '7', 'a.b/c': 'x' }, ttl_secs: 600 });
    const others = await spawn({ n: 4, metadata: { job: '8' } });
    expect(one).toMatchObject({ metadata: { job: '7' }, owner: 'ann', state: 'running' });
    expect(one!.expires_at_unix).toBeGreaterThan(Date.now() / 1000 + 500);
    const ids = async (query: string): Promise<string[]> =>
      ((await say(ANN, 'GET', `/v1/sandboxes${query}`)).body as SandboxInfo[]).map(({ id }) => id).sort();
    expect(await ids('?metadata=job=7')).toEqual([one!.id]);
    expect(await ids('?metadata=job=7,a.b/c=x')).toEqual([one!.id]);
    expect(await ids('?metadata=job=7,a.b/c=y')).toEqual([]);
    expect(await ids('?metadata=job=8&snapshot_tag=plain')).toEqual(others.map(({ id }) => id).sort());
    expect((await say(ANN, 'GET', '/v1/sandboxes?metadata=nonsense')).status).toBe(400);

    const paged: string[] = [];
    for (let token: string | undefined, pages = 0; pages < 10; pages++) {
      const page = await say(ANN, 'GET', `/v1/sandboxes?limit=2${token ? `&page_token=${token}` : ''}`);
      paged.push(...page.body.map(({ id }: SandboxInfo) => id));
      token = page.headers['x-next-token'] as string | undefined;
      if (!token) break;
    }
    expect(paged.sort()).toEqual(await ids(''));

    const path = `/v1/sandboxes/${one!.id}`;
    const changed = await say(ANN, 'PATCH', path, { ttl_secs: null, metadata: { done: 'yes' } });
    expect(changed.body).toMatchObject({ expires_at_unix: null, metadata: { done: 'yes' } });
    await say(ANN, 'PATCH', path, { ttl_secs: 1 });
    const events = await follow(ANN, `?types=exited,crashed&sandbox_id=${one!.id}`);
    expect(await events.until('exited')).toMatchObject({ message: 'expired' });
    events.stop();
    expect((await say(ANN, 'GET', path)).body).toMatchObject({ state: 'exited', exit_reason: 'expired', pid: null });
    const late = await say(ANN, 'POST', `${path}/exec`, { args: ['true'] });
    expect([late.status, late.body.details]).toEqual([409, { state: 'exited' }]);
    expect(await ids('?state=exited')).toContain(one!.id);
    expect(await ids('')).not.toContain(one!.id);
    expect((await say(ANN, 'DELETE', path)).status).toBe(204);
    expect((await say(ANN, 'GET', path)).status).toBe(404);
    for (const { id } of others) await say(ANN, 'DELETE', `/v1/sandboxes/${id}`);
  });

  it('pause and resume; what comes at the wrong time is refused by naming the state', async () => {
    const [{ id }] = (await spawn()) as [SandboxInfo];
    const path = `/v1/sandboxes/${id}`;
    expect((await say(ANN, 'POST', `${path}/resume`)).body).toMatchObject({
      code: 'state_conflict',
      details: { state: 'running' },
    });
    expect((await say(ANN, 'POST', `${path}/pause`)).body.state).toBe('paused');
    expect((await say(ANN, 'POST', `${path}/pause`)).status).toBe(409);
    const refused = await say(ANN, 'POST', `${path}/exec`, { args: ['true'] });
    expect([refused.status, refused.body.details]).toEqual([409, { state: 'paused' }]);
    expect((await say(ANN, 'GET', `${path}/console`)).status).toBe(200);
    expect((await say(ANN, 'POST', `${path}/resume`)).body.state).toBe('running');
    expect((await say(ANN, 'POST', `${path}/exec`, { args: ['hostname'] })).body.stdout).toBe(`${id}\n`);
    await say(ANN, 'POST', `${path}/pause`);
    expect((await say(ANN, 'DELETE', path)).status).toBe(204);
  });

  it('a VM that dies is noticed at once, told of and counted', async () => {
    const events = await follow(EYE, '?types=crashed');
    const [{ id, pid }] = (await spawn()) as [SandboxInfo];
    const running = say(ANN, 'POST', `/v1/sandboxes/${id}/exec`, { args: ['sleep', '60'], timeout_secs: 60 });
    await new Promise((done) => setTimeout(done, 300));
    process.kill(pid!, 'SIGKILL');
    const since = Date.now();
    expect((await running).body.code).toBe('vmm_exited');
    expect(await events.until('crashed')).toMatchObject({ sandbox_id: id, owner: 'ann' });
    expect(Date.now() - since).toBeLessThan(2000);
    events.stop();
    expect((await say(ANN, 'GET', `/v1/sandboxes/${id}`)).body).toMatchObject({
      state: 'exited',
      exit_reason: expect.stringContaining('signal 9'),
    });
    expect((await say(EYE, 'GET', '/metrics')).text).toMatch(/forkd_sandboxes_exited_total\{reason="crashed"\} 1\n/);
  });

  it('bug class 31: children of a client that goes away are not left over', async () => {
    const body = JSON.stringify({ snapshot_tag: 'plain', n: 20 });
    const signal = AbortSignal.timeout(150);
    await expect(daemon.call('/v1/sandboxes', { method: 'POST', token: ANN, body, signal })).rejects.toThrow();
    for (let left = 100; left > 0 && (await say(ANN, 'GET', '/v1/sandboxes')).body.length > 0; left--)
      await new Promise((done) => setTimeout(done, 50));
    expect((await say(ANN, 'GET', '/v1/sandboxes')).body).toEqual([]);
  });
});

describe('Idempotency-Key', () => {
  it('a repetition gets the first answer and creates nothing', async () => {
    const key = { 'idempotency-key': 'k-1' };
    const [first, second] = await Promise.all([spawn({ n: 2 }, key), spawn({ n: 2 }, key)]);
    expect(second).toEqual(first);
    const third = await say(ANN, 'POST', '/v1/sandboxes', { snapshot_tag: 'plain', n: 2 }, key);
    expect(third.headers['idempotency-replayed']).toBe('true');
    expect((await say(ANN, 'GET', '/v1/sandboxes')).body).toHaveLength(2);
    const other = await say(ANN, 'POST', '/v1/sandboxes', { snapshot_tag: 'plain', n: 3 }, key);
    expect([other.status, other.body.code]).toEqual([422, 'idempotency_conflict']);
    for (const bad of ['', 'a b', 'x'.repeat(201)]) {
      const refused = await say(ANN, 'POST', '/v1/sandboxes', { snapshot_tag: 'plain' }, { 'idempotency-key': bad });
      expect(refused.status).toBe(400);
    }
    for (const { id } of first) await say(ANN, 'DELETE', `/v1/sandboxes/${id}`);
  });

  it('what failed may be tried again', async () => {
    const key = { 'idempotency-key': 'k-2' };
    const body = { snapshot_tag: 'absent' };
    expect((await say(ANN, 'POST', '/v1/sandboxes', body, key)).status).toBe(404);
    expect((await say(ANN, 'POST', '/v1/sandboxes', body, key)).status).toBe(404);
  });
});

describe('owners', () => {
  it('an admin touches everything, a reader changes nothing; owners.test.ts has what a user does not see', async () => {
    const [{ id }] = (await spawn()) as [SandboxInfo];
    const path = `/v1/sandboxes/${id}`;
    expect((await say(EYE, 'GET', path)).status).toBe(200);
    expect((await say(EYE, 'DELETE', path)).status).toBe(403);
    expect((await say(EYE, 'GET', `${path}/files?path=/etc/hostname`)).status).toBe(403);
    const host = { tag: 'host', kernel: '/etc/hostname', rootfs: '/etc/hostname' };
    expect((await say(ANN, 'POST', '/v1/snapshots', host)).status).toBe(403);
    expect((await say(ANN, 'GET', '/v1/lineage')).body).toEqual(
      expect.arrayContaining([
        expect.objectContaining({ kind: 'snapshot', name: 'plain', parent: null, state: 'ready' }),
        expect.objectContaining({ kind: 'sandbox', name: id, parent: 'plain', state: 'running' }),
      ]),
    );
    expect((await say(ADMIN, 'DELETE', path)).status).toBe(204);
  });
});

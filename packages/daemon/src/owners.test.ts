import { writeFileSync } from 'node:fs';
import { newSandboxId, ROUTES, type Route, type RouteName } from '@forkd/protocol';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Answer, plainRecipes, TestDaemon, temporaryData } from './testing.js';

const ANN = 'token-of-ann-0123456789';
const BOB = 'token-of-bob-0123456789';
const ADMIN = 'admin-token-0123456789';

/** What names something in a request. */
interface Names {
  id: string;
  tag: string;
  name: string;
}

let daemon: TestDaemon;
/** What each of them has. */
let anns: Names;
let bobs: Names;

beforeAll(async () => {
  const root = temporaryData();
  const tokens = [
    ['ann', 'user', ANN],
    ['bob', 'user', BOB],
    ['root', 'admin', ADMIN],
  ].map(([name, role, token]) => `[[token]]\nname="${name}"\nrole="${role}"\ntoken="${token}"\n`);
  writeFileSync(`${root}/tokens.toml`, tokens.join(''), { mode: 0o600 });
  daemon = await TestDaemon.start(['--tokens-file', `${root}/tokens.toml`, '--recipes', plainRecipes(root)], root);
  [anns, bobs] = [await possessions('ann', ANN), await possessions('bob', BOB)];
});

afterAll(async () => {
  for (const { id } of (await say(ADMIN, 'GET', '/v1/sandboxes')).body)
    await say(ADMIN, 'DELETE', `/v1/sandboxes/${id}`);
  await daemon[Symbol.asyncDispose]();
});

async function possessions(who: string, token: string): Promise<Names> {
  const make = async (path: string, body: object): Promise<Answer['body']> => {
    const reply = await say(token, 'POST', path, body);
    expect(reply.status, reply.text).toBe(201);
    return reply.body;
  };
  await make('/v1/snapshots', { tag: `${who}s`, recipe: 'plain' });
  const [{ id }] = await make('/v1/sandboxes', { snapshot_tag: `${who}s` });
  await make(`/v1/sandboxes/${id}/fork`, { tag: `${who}s-branch` });
  await make('/v1/workspaces', { name: `${who}s-desk`, snapshot_tag: `${who}s` });
  return { id, tag: `${who}s-branch`, name: `${who}s-desk` };
}

function say(token: string, method: string, path: string, body?: object): Promise<Answer> {
  const headers =
    path.endsWith('files?path=/x') && method === 'PUT' ? { 'content-type': 'application/octet-stream' } : {};
  return daemon.call(path, { method, token, headers, ...(body && { body: JSON.stringify(body) }) });
}

interface Request {
  query?: string;
  body?: object;
}

/** Requests that would do something, if only what they name were the caller's; `undefined`: nothing is named in it. */
const NAMING: Record<RouteName, ((names: Names) => Request)[] | undefined> = {
  health: undefined,
  version: undefined,
  metrics: undefined,
  openapi: undefined,
  docs: undefined,
  listRecipes: undefined,
  networkAuthority: undefined,
  // What these show is looked at below.
  events: undefined,
  lineage: undefined,
  listSnapshots: undefined,
  listSandboxes: undefined,
  listWorkspaces: undefined,
  createSnapshot: undefined,
  // For admins alone.
  gc: undefined,
  diff: [
    ({ id }) => ({ query: `a=${bobs.id}&b=${id}` }),
    ({ id }) => ({ query: `a=${id}&b=${bobs.id}` }),
    ({ tag }) => ({ query: `a=${bobs.tag}&b=${tag}` }),
  ],
  spawn: [({ tag }) => ({ body: { snapshot_tag: tag } })],
  createWorkspace: [({ tag }) => ({ body: { name: 'new', snapshot_tag: tag } })],
  getSnapshot: [() => ({})],
  shareSnapshot: [() => ({ body: { with: 'all' } })],
  changeSnapshot: [() => ({ body: { pinned: true } })],
  deleteSnapshot: [() => ({}), () => ({ query: 'cascade=true' }), () => ({ query: 'force=true' })],
  snapshotInfo: [() => ({})],
  compactSnapshot: [() => ({ body: { to: 'new' } })],
  getSandbox: [() => ({})],
  changeSandbox: [() => ({ body: { metadata: { stolen: 'yes' } } })],
  killSandbox: [() => ({})],
  pause: [() => ({})],
  resume: [() => ({})],
  console: [() => ({})],
  pty: [() => ({})],
  getNetwork: [() => ({})],
  changeNetwork: [() => ({ body: { preset: 'all' } })],
  ports: [() => ({})],
  proxy: [() => ({})],
  tunnel: [() => ({})],
  readFile: [() => ({ query: 'path=/etc/hostname' })],
  writeFile: [() => ({ query: 'path=/x' })],
  removeFile: [() => ({ query: 'path=/etc/hostname' })],
  statFile: [() => ({ query: 'path=/etc/hostname' })],
  listFiles: [() => ({ query: 'path=/' })],
  watchFiles: [() => ({ query: 'path=/' })],
  makeFolder: [() => ({ query: 'path=/x' })],
  moveFile: [() => ({ body: { from: '/etc/hostname', to: '/x' } })],
  ping: [() => ({})],
  exec: [() => ({ body: { args: ['touch', '/x'] } })],
  eval: [() => ({ body: { code: '1', language: 'python' } })],
  branch: [() => ({ body: { tag: 'new' } })],
  fork: [() => ({ body: { tag: 'new' } })],
  rollback: [() => ({ body: { snapshot_tag: bobs.tag } }), ({ tag }) => ({ body: { snapshot_tag: tag } })],
  promote: [() => ({})],
  getWorkspace: [() => ({})],
  deleteWorkspace: [() => ({})],
  suspendWorkspace: [() => ({ body: {} })],
  resumeWorkspace: [() => ({})],
};

const routes = Object.entries(ROUTES) as [RouteName, Route][];

it('every route that names something is asked', () => {
  for (const [name, { path }] of routes)
    expect([name, NAMING[name] !== undefined || !path.includes(':')]).toEqual([name, true]);
});

/** All of what an owner can see, without what time changes. */
async function seen(token: string): Promise<unknown> {
  const lists = ['/v1/sandboxes', '/v1/snapshots', '/v1/workspaces', '/v1/lineage'];
  return Promise.all(lists.map(async (path) => (await say(token, 'GET', path)).body));
}

it('what belongs to another does not exist, whatever is asked of it, and stays as it is', async () => {
  const before = await seen(ANN);
  const absent = { id: newSandboxId(), tag: 'absent', name: 'absent' };
  const answers = async (route: Route, request: (names: Names) => Request, names: Names): Promise<unknown> => {
    const { query, body } = request(names);
    const path = route.path
      .replace(':port', '80')
      .replace('*', '')
      .replace(/:(\w+)/, (_, key: keyof Names) => names[key]);
    const { status, body: answer } = await say(BOB, route.method, query ? `${path}?${query}` : path, body);
    const message = [names.id, names.tag, names.name].reduce((text, name) => text.replaceAll(name, '…'), answer.error);
    return [status, answer.code, message, answer.details];
  };
  for (const [name, route] of routes)
    for (const request of NAMING[name] ?? []) {
      const foreign = await answers(route, request, anns);
      expect([name, foreign]).toEqual([
        name,
        [404, expect.stringMatching(/^(sandbox|snapshot|workspace)_not_found$/), expect.any(String), undefined],
      ]);
      expect([name, foreign]).toEqual([name, await answers(route, request, absent)]);
    }
  // One's own sandbox does not go to another's snapshot either.
  const back = await say(BOB, 'POST', `/v1/sandboxes/${bobs.id}/rollback`, { snapshot_tag: anns.tag });
  expect([back.status, back.body.code]).toEqual([404, 'snapshot_not_found']);
  expect((await say(BOB, 'POST', '/v1/gc', { dry_run: true })).status).toBe(403);
  expect(await seen(ANN)).toEqual(before);
  expect((await say(ANN, 'POST', `/v1/sandboxes/${anns.id}/exec`, { args: ['ls', '/x'] })).body.exit_code).toBe(2);
});

it('nothing that is shown shows what belongs to another', async () => {
  const stop = new AbortController();
  const events = await fetch(`${daemon.url}/v1/events?since=0`, {
    headers: { authorization: `Bearer ${BOB}` },
    signal: stop.signal,
  });
  let told = '';
  const reading = (async () => {
    for await (const chunk of events.body!) told += Buffer.from(chunk);
  })().catch(() => {});
  await expect.poll(() => told).toContain(bobs.tag);
  stop.abort();
  await reading;
  const metrics = (await say(BOB, 'GET', '/metrics')).text;
  const info = (await say(BOB, 'GET', `/v1/snapshots/bobs/info`)).text;
  const lists = JSON.stringify(await seen(BOB));
  const page = (await say(BOB, 'GET', `/v1/sandboxes?page_token=${anns.id}`)).text;
  const foreign = (await say(BOB, 'GET', `/v1/sandboxes?snapshot_tag=anns`)).body;
  for (const text of [told, metrics, info, lists, page])
    for (const name of [anns.id, anns.tag, anns.name, '"anns"', 'ann"']) expect(text).not.toContain(name);
  expect(foreign).toEqual([]);
});

it('what an admin makes of it, its owner neither sees nor takes along', async () => {
  const [{ id }] = (await say(ADMIN, 'POST', '/v1/sandboxes', { snapshot_tag: bobs.tag })).body;
  expect((await say(ADMIN, 'POST', `/v1/sandboxes/${id}/branch`, { tag: 'roots' })).status).toBe(201);
  const info = (await say(BOB, 'GET', `/v1/snapshots/${bobs.tag}/info`)).body;
  expect([info.dependents, info.sandboxes.includes(id)]).toEqual([[], false]);
  await say(ADMIN, 'DELETE', `/v1/sandboxes/${id}`);
  const refused = await say(BOB, 'DELETE', `/v1/snapshots/${bobs.tag}?cascade=true`);
  expect([refused.status, refused.text.includes('roots')]).toEqual([409, false]);
  expect((await say(ADMIN, 'GET', '/v1/snapshots/roots')).status).toBe(200);
});

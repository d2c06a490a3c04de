import { X509Certificate } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import type { NetworkInfo, SandboxInfo } from '@forkd/protocol';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Answer, plainRecipes, TestDaemon, temporaryData } from './testing.js';

const TOKENS = {
  ann: 'the-token-of-ann-the-user',
  bob: 'the-token-of-bob-who-may-less',
  eve: 'the-token-of-eve-who-may-nothing',
  root: 'the-token-of-root-the-admin',
};
const SECRET = 'Bearer never-seen-by-anybody';
const RULES = { 'api.example.com': { headers: { Authorization: SECRET } } };

let daemon: TestDaemon;

beforeAll(async () => {
  const root = temporaryData();
  const tokens = `[[token]]\nname = "ann"\nrole = "user"\ntoken = "${TOKENS.ann}"\n
[[token]]\nname = "bob"\nrole = "user"\ntoken = "${TOKENS.bob}"\nnetwork = "internet"\n
[[token]]\nname = "eve"\nrole = "user"\ntoken = "${TOKENS.eve}"\nnetwork = "none"\n
[[token]]\nname = "root"\nrole = "admin"\ntoken = "${TOKENS.root}"\n`;
  writeFileSync(`${root}/tokens.toml`, tokens, { mode: 0o600 });
  const flags = ['--tokens-file', `${root}/tokens.toml`, '--network-policy', 'none example.org:443'];
  daemon = await TestDaemon.start(['--recipes', plainRecipes(root), ...flags], root);
  expect((await say('POST', '/v1/snapshots', { tag: 'plain', recipe: 'plain' })).status).toBe(201);
});

afterAll(async () => {
  for (const { id } of (await say('GET', '/v1/sandboxes', undefined, 'root')).body)
    await say('DELETE', `/v1/sandboxes/${id}`, undefined, 'root');
  await daemon[Symbol.asyncDispose]();
});

function say(method: string, path: string, body?: object, who: keyof typeof TOKENS = 'ann'): Promise<Answer> {
  return daemon.call(path, { method, token: TOKENS[who], ...(body && { body: JSON.stringify(body) }) });
}

const spawn = (snapshot_tag: string, network?: object, who: keyof typeof TOKENS = 'ann'): Promise<Answer> =>
  say('POST', '/v1/sandboxes', { snapshot_tag, ...(network && { network }) }, who);

async function born(answer: Promise<Answer>): Promise<SandboxInfo> {
  const { status, body } = await answer;
  expect(status, JSON.stringify(body)).toBe(201);
  return body[0] ?? body.results[0].sandbox;
}

const network = async (id: string, who: keyof typeof TOKENS = 'ann'): Promise<NetworkInfo> =>
  (await say('GET', `/v1/sandboxes/${id}/network`, undefined, who)).body;

const POLICY = { preset: 'none', allow: ['api.example.com:443', '10.0.0.0/8'], deny: ['10.0.0.1'] };
const HEADERS = { 'api.example.com': { headers: ['authorization'] } };

it.each([
  [{ allow: ['10.0.0.0/33'] }, 'allow.0'],
  [{ allow: ['10.0.0.1/8'] }, '10.0.0.0/8'],
  [{ allow: ['a.example:70000'] }, '1 to 65535'],
  [{ deny: ['a..example'] }, 'host name'],
  [{ allow: Array(257).fill('a.example') }, 'allow'],
  [{ allow: ['x'.repeat(400)] }, 'allow.0'],
  [{ preset: 'everything' }, 'preset'],
  [{ rules: { '10.0.0.1': { headers: {} } } }, 'rules'],
  [{ rules: { 'a.example': { headers: { Host: 'x' } } } }, 'rules'],
  [{ rules: { 'a.example': { headers: { a: 'x\r\nb: y' } } } }, 'rules'],
  [{ alow: [] }, 'alow'],
])('%j is refused with a hint', async (bad, why) => {
  const { status, body } = await spawn('plain', bad);
  expect([status, body.code]).toEqual([400, 'invalid_request']);
  expect(body.error).toContain(why);
  expect(body.hint).not.toBe('');
  // What is refused may be a secret.
  expect(JSON.stringify(body)).not.toContain('b: y');
});

describe('the policy of a sandbox', () => {
  it('is what was asked for, else what the daemon was started with', async () => {
    const asked = await born(spawn('plain', { allow: ['API.example.com.:443', '10.0.0.0/8'], deny: ['10.0.0.1'] }));
    expect(asked.network).toEqual(POLICY);
    const other = await born(spawn('plain'));
    expect(other.network).toEqual({ preset: 'none', allow: ['example.org:443'], deny: [] });
    expect(await network(other.id)).toMatchObject({ rules: {}, counters: { allowed: 0, open: 0 }, decisions: [] });
  });

  it('can be replaced; headers are named, and stay until others are given', async () => {
    const { id } = await born(spawn('plain', { ...POLICY, rules: RULES }));
    expect(await network(id)).toMatchObject({ ...POLICY, rules: HEADERS });
    const changed = await say('PUT', `/v1/sandboxes/${id}/network`, { preset: 'internet' });
    expect(changed.body).toMatchObject({ preset: 'internet', allow: [], deny: [], rules: HEADERS });
    expect((await say('PUT', `/v1/sandboxes/${id}/network`, { rules: {} })).body).toMatchObject({
      preset: 'none',
      rules: {},
    });
    expect((await say('GET', `/v1/sandboxes/sb-${'0'.repeat(20)}/network`)).status).toBe(404);
    const bad = await say('PUT', `/v1/sandboxes/${id}/network`, { allow: ['1.2.3.4/99'] });
    expect([bad.status, bad.body.code]).toEqual([400, 'invalid_request']);
    expect((await network(id)).preset).toBe('none');
  });

  it('goes on in forks, branches and workspaces, and is widened only by who says so', async () => {
    const { id } = await born(spawn('plain', { ...POLICY, rules: RULES }));
    const child = await born(say('POST', `/v1/sandboxes/${id}/fork`, { n: 1, tag: 'between' }));
    expect(child.network).toEqual(POLICY);
    expect((await network(child.id)).rules).toEqual(HEADERS);
    const meta = readFileSync(`${daemon.root}/snapshots/between/snapshot.json`, 'utf8');
    expect(JSON.parse(meta).policy).toEqual(POLICY);

    for (const more of [
      { preset: 'all' },
      { allow: ['other.example'], deny: ['10.0.0.1'] },
      { allow: ['10.0.0.0/8'] },
    ]) {
      const refused = await spawn('between', more);
      expect([refused.status, refused.body.code]).toEqual([400, 'invalid_request']);
      expect(refused.body.hint).toContain('widen');
    }
    expect((await born(spawn('between', { deny: ['10.0.0.1'] }))).network?.allow).toEqual([]);
    expect((await born(spawn('between', { preset: 'all', widen: true }))).network?.preset).toBe('all');
    // Of another owner: the policy, but no secret.
    const foreign = await born(spawn('between', undefined, 'root'));
    expect(foreign.network).toEqual(POLICY);
    expect((await network(foreign.id, 'root')).rules).toEqual({});

    // A copy that stands alone has what the original has.
    expect((await say('POST', '/v1/snapshots/between/compact', { to: 'alone' })).status).toBe(200);
    const copied = await born(spawn('alone'));
    expect(await network(copied.id)).toMatchObject({ ...POLICY, rules: HEADERS });
    expect((await spawn('alone', { preset: 'all' })).body.hint).toContain('widen');
    expect((await network((await born(spawn('alone', undefined, 'root'))).id, 'root')).rules).toEqual({});

    const made = await say('POST', '/v1/workspaces', {
      name: 'desk',
      snapshot_tag: 'plain',
      network: { ...POLICY, rules: RULES },
    });
    expect((await network(made.body.live_sandbox_id)).rules).toEqual(HEADERS);
    await say('POST', '/v1/workspaces/desk/suspend', {});
    const resumed = await say('POST', '/v1/workspaces/desk/resume', {});
    expect(await network(resumed.body.live_sandbox_id)).toMatchObject({ ...POLICY, rules: HEADERS });
    expect((await say('DELETE', '/v1/workspaces/desk')).status).toBe(204);

    // Who takes the id of another keeps what is its own.
    await say('PUT', `/v1/sandboxes/${child.id}/network`, { allow: ['mine.example'] });
    const promoted = await say('POST', `/v1/sandboxes/${child.id}/promote`);
    expect(promoted.body.id).toBe(id);
    expect(await network(id)).toMatchObject({ allow: ['mine.example'], rules: HEADERS });
  });

  it('is there after the daemon was killed', async () => {
    const { id } = await born(spawn('plain', { ...POLICY, rules: RULES }));
    daemon.signal('SIGKILL');
    await daemon.restart();
    expect(await network(id)).toMatchObject({ ...POLICY, rules: HEADERS });
  });
});

it('a token opens no more than it may, for whoever asks', async () => {
  expect((await say('PUT', '/v1/snapshots/plain/share', { with: ['bob', 'eve'] })).status).toBe(200);
  const refused = async (answer: Promise<Answer>, more: string): Promise<void> => {
    const { status, body } = await answer;
    expect([status, body.code, body.details]).toMatchObject([403, 'quota_exceeded', { quota: 'network', more }]);
    expect(body.hint).toContain('tokens file');
  };
  await refused(spawn('plain', { preset: 'all' }, 'bob'), 'preset all');
  await refused(spawn('plain', { allow: ['10.0.0.0/8'] }, 'bob'), '10.0.0.0/8');
  await refused(spawn('plain', { allow: ['169.254.169.254'], widen: true }, 'bob'), '169.254.169.254');
  await refused(spawn('plain', { allow: ['api.example.com'] }, 'eve'), 'api.example.com');
  const { id } = await born(spawn('plain', { preset: 'internet', allow: ['api.example.com', '8.8.8.8'] }, 'bob'));
  // Also when another one asks for it.
  await refused(say('PUT', `/v1/sandboxes/${id}/network`, { preset: 'all' }, 'root'), 'preset all');
  expect((await network(id, 'bob')).preset).toBe('internet');
  await refused(
    say('POST', '/v1/workspaces', { name: 'x', snapshot_tag: 'plain', network: { preset: 'all' } }, 'bob'),
    'preset all',
  );
  // What the daemon gives to all, nobody has asked for.
  expect((await born(spawn('plain', undefined, 'bob'))).network?.allow).toEqual(['example.org:443']);
  expect((await born(spawn('plain', undefined, 'eve'))).network).toEqual({ preset: 'none', allow: [], deny: [] });
});

it('a recipe can have the authority among those its guest believes', async () => {
  const recipe = readFileSync(`${daemon.root}/recipes/plain/recipe.toml`, 'utf8');
  mkdirSync(`${daemon.root}/recipes/trusting`);
  writeFileSync(`${daemon.root}/recipes/trusting/recipe.toml`, `trust_egress_ca = true\n${recipe}`);
  const made = await say('POST', '/v1/snapshots', { tag: 'trusting', recipe: 'trusting' });
  expect(made.status, made.text).toBe(201);
  const { id } = await born(spawn('trusting'));
  const args = ['sh', '-c', 'cat "$SSL_CERT_FILE"'];
  const { body } = await say('POST', `/v1/sandboxes/${id}/exec`, { args });
  expect(body.stdout).toContain((await say('GET', '/v1/network/ca')).text.trim());
});

it('no secret is where anybody could find it', async () => {
  const { id } = await born(spawn('plain', { ...POLICY, rules: RULES }));
  await say('POST', `/v1/sandboxes/${id}/branch`, { tag: 'kept' });
  const answers = [
    await say('GET', '/v1/sandboxes'),
    await say('GET', `/v1/sandboxes/${id}/network`),
    await say('GET', '/v1/snapshots'),
    await say('GET', '/metrics', undefined, 'root'),
    await say('GET', '/v1/lineage'),
  ];
  for (const { text } of answers) expect(text).not.toContain('never-seen');
  expect(daemon.log).not.toContain('never-seen');
  await say('POST', '/v1/snapshots/kept/compact', { to: 'copied' });
  for (const name of ['audit.log', 'snapshots/kept/snapshot.json', 'snapshots/copied/snapshot.json'])
    expect(readFileSync(`${daemon.root}/${name}`, 'utf8')).not.toContain('never-seen');
  // They are kept in one place, for nobody else.
  for (const name of readdirSync(daemon.root).filter((file) => file.startsWith('state.db')))
    expect([name, statSync(`${daemon.root}/${name}`).mode & 0o077]).toEqual([name, 0]);
  expect(statSync(`${daemon.root}/egress/ca.pem`).mode & 0o777).toBe(0o600);
  const { text } = await say('GET', '/v1/network/ca');
  expect(text).not.toContain('PRIVATE');
  expect(new X509Certificate(text).ca).toBe(true);
  // Who removes what they belong to removes them.
  await say('DELETE', `/v1/sandboxes/${id}`);
  await say('DELETE', '/v1/snapshots/kept');
  await say('POST', '/v1/snapshots', { tag: 'kept', recipe: 'plain' });
  const again = await born(spawn('kept'));
  expect((await network(again.id)).rules).toEqual({});
});

import { createHash } from 'node:crypto';
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { TestDaemon } from './testing.js';
import { Tokens } from './tokens.js';

const root = mkdtempSync(`${tmpdir()}/forkd-tokens-`);
afterAll(() => rmSync(root, { recursive: true }));

function file(text: string, mode = 0o600): string {
  const path = `${root}/file`;
  writeFileSync(path, text);
  chmodSync(path, mode);
  return path;
}

function entry(name: string, role: string, token: string): string {
  return `[[token]]\nname = "${name}"\nrole = "${role}"\n${token}\n`;
}

const ADMIN = 'admin-token-0123456789';
const USER = 'user-token-0123456789';
const READ = 'read-token-0123456789';
const THREE = [
  entry('root', 'admin', `token = "${ADMIN}"`),
  entry('ci', 'user', `token_sha256 = "${createHash('sha256').update(USER).digest('hex')}"`),
  entry('eye', 'read', `token = "${READ}"`),
].join('');

describe('bug class 4: a secret that is none', () => {
  it.each([
    '',
    'short',
    'REPLACE_ME_PLEASE_REPLACE_ME',
    'change_me_change_me_change_me',
    'has a space in the middle of it',
    'ümlauts-ümlauts-ümlauts',
  ])('%j is refused in a token file and in a tokens file', (token) => {
    const refused = expect.objectContaining({ code: 'invalid_request', hint: expect.stringContaining('openssl') });
    expect(() => new Tokens({ tokenFile: file(token), tokensFile: undefined })).toThrowError(refused);
    const tokensFile = file(entry('a', 'admin', `token = "${token}"`));
    expect(() => new Tokens({ tokenFile: undefined, tokensFile })).toThrowError(refused);
  });
});

it.each([
  ['no token at all', ''],
  ['a name twice', entry('a', 'user', `token = "${ADMIN}"`) + entry('a', 'user', `token = "${USER}"`)],
  ['a token twice', entry('a', 'user', `token = "${ADMIN}"`) + entry('b', 'user', `token = "${ADMIN}"`)],
  ['an unknown role', entry('a', 'owner', `token = "${ADMIN}"`)],
  ['a name that is taken', entry('local', 'user', `token = "${ADMIN}"`)],
  ['a name that climbs', entry('../a', 'user', `token = "${ADMIN}"`)],
  ['an entry without a token', entry('a', 'user', '')],
  ['a token and a digest', entry('a', 'user', `token = "${ADMIN}"\ntoken_sha256 = "${'0'.repeat(64)}"`)],
  ['a digest that is none', entry('a', 'user', 'token_sha256 = "1234"')],
  ['an unknown field', entry('a', 'user', `token = "${ADMIN}"\ncolour = 1`)],
  ['what is not TOML', `token = "${ADMIN}`],
])('a tokens file with %s is refused without repeating a token', (_, text) => {
  expect(() => new Tokens({ tokenFile: undefined, tokensFile: file(text) })).toThrowError(
    expect.objectContaining({ code: 'invalid_request', message: expect.not.stringContaining(ADMIN) }),
  );
});

it('a tokens file that others can read is refused with the command that helps', () => {
  expect(() => new Tokens({ tokenFile: undefined, tokensFile: file(THREE, 0o640) })).toThrowError(
    expect.objectContaining({ hint: expect.stringContaining('chmod 600') }),
  );
});

it('a single token has the name default and may do everything', () => {
  const tokens = new Tokens({ tokenFile: file(`  ${ADMIN}\n`), tokensFile: undefined });
  expect(tokens.find(ADMIN)).toEqual({ name: 'default', role: 'admin' });
  expect(tokens.find(`${ADMIN}x`)).toBeUndefined();
});

it('bug class 7: finding a token takes as long for a near miss as for anything else', () => {
  const tokens = new Tokens({ tokenFile: undefined, tokensFile: file(THREE) });
  const median = (presented: string): number => {
    const times = Array.from({ length: 2001 }, () => {
      const start = process.hrtime.bigint();
      tokens.find(presented);
      return Number(process.hrtime.bigint() - start);
    });
    return times.sort((a, b) => a - b)[1000]!;
  };
  median(ADMIN);
  const [near, far] = [median(`${ADMIN.slice(0, -1)}x`), median('x'.repeat(ADMIN.length))];
  // An early exit at the first wrong byte shows at once in a comparison of text; of digests nothing can be learnt.
  expect(Math.max(near, far) / Math.min(near, far)).toBeLessThan(3);
});

describe('a daemon with a tokens file', () => {
  const tokens = `${root}/tokens.toml`;
  let daemon: TestDaemon;
  beforeAll(async () => {
    writeFileSync(tokens, THREE, { mode: 0o600 });
    daemon = await TestDaemon.start(['--tokens-file', tokens, '--socket', `${root}/socket`]);
  });
  afterAll(() => daemon[Symbol.asyncDispose]());

  it('lets each role do what the table of routes says', async () => {
    const status = async (token: string, method: string, path: string): Promise<number> => {
      const body = method === 'POST' ? '{}' : undefined;
      return (await daemon.call(path, { method, token, ...(body && { body }) })).status;
    };
    for (const token of [ADMIN, USER, READ]) expect(await status(token, 'GET', '/v1/sandboxes')).toBe(200);
    expect(await status(READ, 'POST', '/v1/sandboxes')).toBe(403);
    expect(await status(USER, 'POST', '/v1/sandboxes')).toBe(400);
    expect(await status(READ, 'GET', '/v1/nowhere')).toBe(404);
    expect(await status(READ, 'HEAD', '/v1/sandboxes')).toBe(200);
    const refused = await daemon.call('/v1/snapshots/x', { method: 'DELETE', token: READ });
    expect([refused.status, refused.body.code]).toEqual([403, 'forbidden']);
  });

  it.each([
    '/healthz/x',
    '/HEALTHZ',
    '/healthz?x',
    '/%68ealthz',
    '//healthz',
    '/healthz//',
    '/healthz/../v1/sandboxes',
    '/healthz%2f',
    '/%zz',
    '/v1/sandboxes/',
    'http://localhost/healthz',
  ])('bug class 8: %s needs a token', async (path) => {
    expect((await daemon.call(path)).status).toBe(401);
    expect((await daemon.call('/healthz')).status).toBe(200);
    expect((await daemon.call('/healthz/')).status).toBe(200);
  });

  it('asks nobody on the Unix socket, but checks a token that is presented', async () => {
    const socketPath = `${root}/socket`;
    expect((await daemon.call('/v1/sandboxes', { socketPath })).status).toBe(200);
    expect((await daemon.call('/v1/sandboxes', { socketPath, method: 'POST', body: '{}' })).status).toBe(400);
    const asReader = await daemon.call('/v1/sandboxes', { socketPath, method: 'POST', body: '{}', token: READ });
    expect(asReader.status).toBe(403);
    expect((await daemon.call('/v1/sandboxes', { socketPath, token: 'wrong' })).status).toBe(401);
  });

  it('reads the file again at SIGHUP, and keeps the old tokens when it is not good', async () => {
    const status = async (token: string): Promise<number> => (await daemon.call('/version', { token })).status;
    writeFileSync(tokens, entry('new', 'read', 'token = "new-token-0123456789"'));
    await daemon.reload();
    expect([await status('new-token-0123456789'), await status(ADMIN)]).toEqual([200, 401]);
    writeFileSync(tokens, entry('new', 'read', 'token = "CHANGE_ME-0123456789"'));
    await daemon.reload();
    expect(await status('new-token-0123456789')).toBe(200);
    expect(daemon.log).toContain('kept as it was: tokens');
    writeFileSync(tokens, THREE);
    await daemon.reload();
    expect([await status('new-token-0123456789'), await status(ADMIN)]).toEqual([401, 200]);
  });

  it('never writes a token anywhere', async () => {
    await daemon.call('/version', { token: ADMIN });
    for (const token of [ADMIN, USER, READ]) expect(daemon.log).not.toContain(token);
  });
});

describe('a daemon without a token', () => {
  let daemon: TestDaemon;
  beforeAll(async () => {
    daemon = await TestDaemon.start();
  });
  afterAll(() => daemon[Symbol.asyncDispose]());

  it.each([
    ['a name that resolves to loopback', { host: 'evil.example:8889' }],
    ['a page of another site', { origin: 'https://evil.example' }],
    ['a page without an origin', { origin: 'null' }],
  ])('takes no call through the browser from %s', async (_, headers) => {
    const refused = await daemon.call('/v1/sandboxes', { headers });
    expect([refused.status, refused.body.code]).toEqual([403, 'forbidden']);
  });

  it('takes calls from this host', async () => {
    for (const host of ['localhost', 'localhost:1', '127.0.0.1', '[::1]:5'])
      expect((await daemon.call('/v1/sandboxes', { headers: { host } })).status).toBe(200);
    const { host } = new URL(daemon.url);
    expect((await daemon.call('/v1/sandboxes', { headers: { host, origin: `http://${host}` } })).status).toBe(200);
  });
});

it('a daemon whose token is a placeholder does not start', async () => {
  await using daemon = TestDaemon.launch(['--token-file', file('REPLACE_ME_0123456789')]);
  expect(await daemon.ended()).toBe(1);
  expect(daemon.log).toMatch(/error: the token is a placeholder\nhint: ./);
});

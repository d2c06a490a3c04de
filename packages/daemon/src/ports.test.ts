import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { type ClientRequest, type IncomingMessage, request } from 'node:http';
import { fileURLToPath } from 'node:url';
import { leaks, NO_LEAKS } from '@forkd/controller';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { WebSocket } from 'ws';
import { type Answer, plainRecipes, TestDaemon, temporaryData } from './testing.js';

const SITE = readFileSync(fileURLToPath(new URL('./site.fixture.py', import.meta.url)), 'utf8');
const OWNER = 'owner-0123456789abcdef';
const OTHER = 'other-0123456789abcdef';
let daemon: TestDaemon;
let id: string;
let path: string;

const say = (method: string, url: string, body?: unknown, token = OWNER): Promise<Answer> =>
  daemon.call(url, { method, token, ...(body !== undefined && { body: JSON.stringify(body) }) });
const shell = async (line: string): Promise<string> =>
  (await say('POST', `/v1/sandboxes/${id}/exec`, { args: ['sh', '-c', line] })).body.stdout.trim();
/** By path, or by name. */
const get = (url: string, headers = {}, port = 3000): Promise<Answer> =>
  daemon.call(`${path}/${port}${url}`, { token: OWNER, headers });
const named = (port: number | string): string => `${port}-${id}.localhost`;
const getNamed = (url: string, headers = {}, port: number | string = 3000): Promise<Answer> =>
  daemon.call(url, { token: OWNER, headers: { host: named(port), ...headers } });

/** A request whose answer is read only as far as the test does. */
function open(url: string, options: object = {}): ClientRequest {
  return request(`${daemon.url}${path}${url}`, { headers: { authorization: `Bearer ${OWNER}` }, ...options });
}

/** What the site answers about a request: its path, and its headers. */
type Seen = [path: string, headers: [string, string][]];
const byName = (pairs: [string, string][]): object =>
  Object.fromEntries(pairs.map(([name, value]) => [name.toLowerCase(), value]));

beforeAll(async () => {
  const root = temporaryData();
  const entry = (name: string, token: string): string =>
    `[[token]]\nname = "${name}"\nrole = "user"\ntoken = "${token}"\n`;
  writeFileSync(`${root}/tokens.toml`, entry('owner', OWNER) + entry('other', OTHER), { mode: 0o600 });
  const args = ['--recipes', plainRecipes(root), '--tokens-file', `${root}/tokens.toml`];
  daemon = await TestDaemon.start(args, root);
  expect((await say('POST', '/v1/snapshots', { tag: 'plain', recipe: 'plain' })).status).toBe(201);
  id = (await say('POST', '/v1/sandboxes', { snapshot_tag: 'plain' })).body[0].id;
  path = `/v1/sandboxes/${id}/proxy`;
  expect((await get('/')).body).toMatchObject({ code: 'guest_error', hint: expect.stringContaining('listen') });
  await daemon.call(`/v1/sandboxes/${id}/files?path=/root/site.py`, {
    method: 'PUT',
    token: OWNER,
    body: SITE,
    headers: { 'content-type': 'application/octet-stream' },
  });
  await shell('nohup python3 /root/site.py > /tmp/log 2>&1 & while [ ! -e /tmp/up ]; do sleep 0.05; done');
});
afterAll(async () => {
  await say('DELETE', `/v1/sandboxes/${id}`);
  daemon.signal('SIGTERM');
  expect(await daemon.ended()).toBe(0);
  expect(leaks(daemon.root)).toEqual(NO_LEAKS);
  await daemon[Symbol.asyncDispose]();
});

it('says which ports are listened on, and by whom', async () => {
  const { body } = await say('GET', `/v1/sandboxes/${id}/ports`);
  expect(body).toEqual([
    { port: 3000, address: '127.0.0.1', pid: expect.any(Number), process: 'python3' },
    { port: 3001, address: '0.0.0.0', pid: expect.any(Number), process: 'python3' },
    { port: 3002, address: '0.0.0.0', pid: expect.any(Number), process: 'python3' },
  ]);
});

describe('what reaches the guest', () => {
  it('by path: its own host, where it came from, no token, no cookie, nothing of the connection', async () => {
    const sent = {
      cookie: 'a=b',
      'x-own': 'yes',
      'x-forwarded-for': 'a lie',
      forwarded: 'for=a-lie',
      connection: 'keep-alive, x-hop',
      'x-hop': '1',
      te: 'trailers',
    };
    const { status, text } = await get('/headers//a/../b?c=%2F', sent);
    expect(status).toBe(200);
    const [seen, pairs] = JSON.parse(text) as Seen;
    expect(seen).toBe('/headers//a/../b?c=%2F');
    expect(byName(pairs)).toEqual({
      host: 'localhost:3000',
      'x-own': 'yes',
      'x-forwarded-for': '127.0.0.1',
      'x-forwarded-proto': 'http',
      'x-forwarded-host': new URL(daemon.url).host,
      'x-forwarded-prefix': `${path}/3000`,
      connection: 'close',
    });
    expect(text).not.toContain(OWNER);
  });

  it('by name: the host the browser sees, and its cookies', async () => {
    const [seen, pairs] = JSON.parse((await getNamed('/headers', { cookie: 'a=b' })).text) as Seen;
    expect(seen).toBe('/headers');
    expect(byName(pairs)).toEqual({
      host: named(3000),
      cookie: 'a=b',
      'x-forwarded-for': '127.0.0.1',
      'x-forwarded-proto': 'http',
      'x-forwarded-host': named(3000),
      connection: 'close',
    });
  });

  it.each([['POST'], ['PUT'], ['DELETE'], ['OPTIONS']])(
    'a large body of a %s, with its length or in chunks',
    async (method) => {
      const data = randomBytes(3 << 20);
      const expected = createHash('sha256').update(data).digest('hex');
      for (const headers of [{ 'content-length': data.length }, { 'transfer-encoding': 'chunked' }]) {
        const asked = open('/3000/upload', { method, headers: { authorization: `Bearer ${OWNER}`, ...headers } });
        asked.end(data);
        const [reply] = (await once(asked, 'response')) as [IncomingMessage];
        expect(Buffer.concat(await reply.toArray()).toString()).toBe(expected);
      }
    },
  );
});

describe('what reaches the client', () => {
  it('by path: no cookies, a cage around pages, redirects that stay below the path', async () => {
    const { status, headers } = await get('/login');
    expect(status).toBe(302);
    expect(headers).toMatchObject({
      location: `${path}/3000/welcome`,
      'content-security-policy': expect.stringMatching(/^sandbox allow-scripts(?!.*allow-same-origin)/),
      'x-request-id': expect.any(String),
    });
    for (const gone of ['set-cookie', 'strict-transport-security', 'x-hop']) expect(headers[gone]).toBeUndefined();
  });

  it('by name: cookies for that name alone', async () => {
    const { headers } = await getNamed('/login');
    expect(headers['set-cookie']).toEqual(['a=1; Path=/', 'b=2']);
    expect([headers.location, headers['content-security-policy']]).toEqual(['/welcome', undefined]);
  });

  it('events as they happen', async () => {
    const asked = open('/3000/events').end();
    const [reply] = (await once(asked, 'response')) as [IncomingMessage];
    const times: number[] = [];
    for await (const _ of reply) times.push(performance.now());
    expect(times.length).toBeGreaterThanOrEqual(3);
    expect(times.at(-1)! - times[0]!).toBeGreaterThan(600);
  });

  it('no faster than it is read, and whoever leaves closes the connection in the guest', async () => {
    const before = daemon.rssMib();
    const asked = open('/3000/endless').end();
    const [reply] = (await once(asked, 'response')) as [IncomingMessage];
    await once(reply, 'readable');
    await new Promise((done) => setTimeout(done, 1_000));
    expect(daemon.rssMib() - before).toBeLessThan(60);
    expect(await shell('ls /tmp/left 2>/dev/null; true')).toBe('');
    asked.on('error', () => {}).destroy();
    await expect.poll(() => shell('ls /tmp/left 2>/dev/null; true'), { timeout: 10_000 }).toBe('/tmp/left');
  });

  it('an answer that is cut short is cut short', async () => {
    await expect(get('/short')).rejects.toThrow();
    expect((await get('/missing')).status).toBe(404);
    expect((await daemon.call(`${path}/3000/headers`, { method: 'HEAD', token: OWNER })).status).toBe(200);
  });
});

describe('what is refused', () => {
  it.each(['/', '/silent', '/twofold', '/swollen', '/odd', '/upgraded'])(
    'an answer that is no HTTP (%s)',
    async (url) => {
      const { status, body } = await get(url, {}, 3002);
      expect([status, typeof body.hint]).toEqual([502, 'string']);
      expect(body.code).toBe(url === '/silent' || url === '/upgraded' ? 'guest_error' : 'guest_protocol');
    },
  );

  it('a port where nobody listens, and one that is none', async () => {
    expect((await get('/', {}, 4000)).status).toBe(502);
    for (const port of ['0', '65536', '99999', '080', '-1', '1e3', 'x'])
      expect((await daemon.call(`${path}/${port}/`, { token: OWNER })).status, port).toBe(400);
    expect((await getNamed('/', {}, 0)).status).toBe(400);
    expect((await getNamed('/', {}, 99_999)).status).toBe(400);
  });

  it('who may not: as if it did not exist', async () => {
    for (const [url, headers] of [
      [`${path}/3000/`, {}],
      [`/v1/sandboxes/${id}/ports`, {}],
      [`/v1/sandboxes/${id}/tunnel/3001`, {}],
      ['/', { host: named(3000) }],
    ] as const) {
      expect((await daemon.call(url, { token: OTHER, headers })).status, url).toBe(404);
      expect((await daemon.call(url, { headers })).status, url).toBe(401);
    }
    // The one path that needs no token is the daemon's own.
    expect((await daemon.call('/healthz', { headers: { host: named(3000) } })).status).toBe(401);
  });

  it('a request that could be read in two ways', async () => {
    const head = `POST ${path}/3000/upload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer ${OWNER}\r\n`;
    for (const lines of [
      'Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
      'Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n',
      'Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n',
      'Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd',
    ])
      expect(await daemon.raw(`${head}${lines}`)).toMatch(/^HTTP\/1\.1 400/);
    const whole = `GET http://other.example/headers HTTP/1.1\r\nHost: ${named(3000)}\r\nConnection: close\r\n`;
    expect(await daemon.raw(`${whole}Authorization: Bearer ${OWNER}\r\n\r\n`)).toMatch(/^HTTP\/1\.1 400/);
  });

  it('what is paused', async () => {
    await say('POST', `/v1/sandboxes/${id}/pause`);
    expect([(await get('/')).status, (await say('GET', `/v1/sandboxes/${id}/ports`)).status]).toEqual([409, 409]);
    await say('POST', `/v1/sandboxes/${id}/resume`);
    expect((await get('/headers')).status).toBe(200);
  });
});

describe('WebSockets', () => {
  const dial = (url: string, headers = {}, token = OWNER): WebSocket =>
    new WebSocket(`${daemon.url.replace('http', 'ws')}${url}`, {
      headers: { authorization: `Bearer ${token}`, ...headers },
    });
  const refused = async (socket: WebSocket): Promise<number | undefined> => {
    const [, reply] = (await once(
      socket.on('error', () => {}),
      'unexpected-response',
    )) as [unknown, IncomingMessage];
    reply.resume();
    return reply.statusCode;
  };

  it.each([['path'], ['name']])('of a site, by %s', async (way) => {
    const socket = way === 'path' ? dial(`${path}/3000/ws`) : dial('/ws', { host: named(3000) });
    await once(socket, 'open');
    for (const text of ['hello', 'x'.repeat(10_000)]) {
      socket.send(text);
      expect(String((await once(socket, 'message'))[0])).toBe(text);
    }
    socket.close();
    await once(socket, 'close');
  });

  it('are refused where the site refuses them, where nobody listens, and for others', async () => {
    expect(await refused(dial(`${path}/3000/missing`))).toBe(404);
    expect(await refused(dial(`${path}/4000/ws`))).toBe(502);
    expect(await refused(dial(`${path}/3000/ws`, {}, OTHER))).toBe(404);
    expect(await refused(dial(`/v1/sandboxes/${id}/tunnel/4000`))).toBe(502);
    expect(await refused(dial(`/v1/sandboxes/${id}/tunnel/3001`, {}, OTHER))).toBe(404);
    expect((await say('GET', `/v1/sandboxes/${id}/tunnel/3001`)).status).toBe(400);
  });

  const bytes = {
    'any bytes': randomBytes(2 << 20),
    // With what an HTTP/2 connection begins, as the one does that carries all this.
    'bytes that look like a new connection': Buffer.alloc(2 << 20, 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),
  };
  it.each(Object.entries(bytes))('carry TCP to a port, both ends of it separately: %s', async (_, data) => {
    const socket = dial(`/v1/sandboxes/${id}/tunnel/3001`);
    await once(socket, 'open');
    for (let at = 0; at < data.length; at += 1 << 16) socket.send(data.subarray(at, at + (1 << 16)));
    socket.send(Buffer.alloc(0));
    const parts: Buffer[] = [];
    socket.on('message', (part: Buffer) => parts.push(part));
    expect((await once(socket, 'close'))[0]).toBe(1000);
    const expected = `${createHash('sha256').update(data).digest('hex')} ${data.length}`;
    expect([Buffer.concat(parts).toString(), parts.at(-1)!.length]).toEqual([expected, 0]);
  });
});

it('without a token, a page of a sandbox reaches its own ports and nothing else of the daemon', async () => {
  await using open = await TestDaemon.start(['--domain', 'boxes.test']);
  const site = (port: number, of = id): string => `${port}-${of}.boxes.test`;
  const status = async (host: string, origin?: string, url = '/'): Promise<number> =>
    (await open.call(url, { headers: { host, ...(origin !== undefined && { origin }) } })).status;
  // There is no such sandbox there: who gets as far as to hear that was let in.
  expect(await status(site(3000))).toBe(404);
  expect(await status(site(3000), `http://${site(3000)}`)).toBe(404);
  expect(await status(site(8000), `http://${site(3000)}`)).toBe(404);
  const other = `sb-${'0'.repeat(20)}`;
  expect(await status(site(3000, other), `http://${site(3000)}`)).toBe(403);
  const { host } = new URL(open.url);
  expect(await status(host, `http://${site(3000)}`, '/v1/sandboxes')).toBe(403);
  expect(await status(host, 'null', '/v1/sandboxes')).toBe(403);
  expect(await status('3000-x.boxes.test')).toBe(403);
  expect(await status(`${site(3000)}.evil.example`)).toBe(403);
  expect(await status(`3000-${id}.localhost`)).toBe(403);
});

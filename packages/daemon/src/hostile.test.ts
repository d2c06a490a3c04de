import { readdirSync } from 'node:fs';
import { request } from 'node:http';
import { connect } from 'node:net';
import { ErrorBody, ROUTES, type Route } from '@forkd/protocol';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { TestDaemon, TOKEN } from './testing.js';

const RUNS = 50;
const LIMIT_MS = 5_000;
let daemon: TestDaemon;
let before: string[];

/** Everything beside and below the data directory, but the shared images. */
const listing = (): string[] =>
  readdirSync(daemon.parent, { recursive: true, encoding: 'utf8' }).filter((path) => !path.startsWith('data/'));

beforeAll(async () => {
  daemon = await TestDaemon.secured();
  before = listing();
});
afterAll(() => daemon.stop());

const MEGABYTE = 'x'.repeat(1 << 20);
const nasty = fc.constantFrom(
  ...['..', '.', '../../etc/passwd', '..%2f..%2f', '/etc/shadow', '\\..\\..', 'a/b', './x', '~root', 'sb-..'],
  ...[
    '',
    ' ',
    '\0',
    'a\0b',
    '\r\n\r\nGET / HTTP/1.1',
    '%',
    '%zz',
    '%00',
    '%c0%ae%c0%ae',
    '\u202e',
    '💩',
    '\ud800',
    'é',
  ],
  ...['__proto__', 'constructor', 'toString', 'null', 'true', 'NaN', '-1', '1e999', '99999999999999999999', '0x10'],
  ...[
    "';--",
    '$(id)',
    '`id`',
    '{{7*7}}',
    '<script>',
    'sb-00000000000000000000',
    'python-numpy',
    '*',
    '[object Object]',
  ],
  'x'.repeat(5000),
);
const string = fc.oneof({ weight: 4, arbitrary: nasty }, fc.string({ unit: 'binary', maxLength: 60 }));
const number = fc.constantFrom(-1, 0, -0, 1.5, 2 ** 31, 2 ** 53, -(2 ** 63), 1e308, Number.MIN_VALUE, 86_401);
const value: fc.Arbitrary<unknown> = fc.oneof(
  string,
  number,
  fc.constantFrom(null, true, false, [], {}, [[]], MEGABYTE),
  fc.array(string, { maxLength: 3 }),
  fc.dictionary(string, string, { maxKeys: 3 }),
);

/** Objects with the names that the route knows, and others, each with a value of the wrong kind. */
function bodies(route: Route): fc.Arbitrary<string> {
  const names = fieldsOf(route.body);
  const known = names.length > 0 ? fc.constantFrom(...names) : string;
  const fields = fc.array(fc.tuple(fc.oneof({ weight: 4, arbitrary: known }, string), value), { maxLength: 6 });
  // Written by hand, because keys may come twice and `__proto__` must be one of them.
  const object = fields.map(
    (pairs) => `{${pairs.map(([name, one]) => `${JSON.stringify(name)}:${JSON.stringify(one)}`).join(',')}}`,
  );
  const odd = fc.constantFrom(
    ...['', '{', '[]', 'null', '1e999', '"x"', '\0', '\ufeff{}', '{"a":1}}', `{"__proto__":{"n":1}}`],
    ...[`${'['.repeat(50_000)}${']'.repeat(50_000)}`, `${'{"a":'.repeat(20_000)}1${'}'.repeat(20_000)}`, MEGABYTE],
    JSON.stringify({ tag: MEGABYTE, snapshot_tag: MEGABYTE, args: [MEGABYTE] }),
    JSON.stringify({ args: Array(5000).fill('x') }),
    JSON.stringify({ env: Object.fromEntries(Array.from({ length: 300 }, (_, index) => [`A${index}`, 'x'])) }),
  );
  return fc.oneof({ weight: 3, arbitrary: object }, odd);
}

function fieldsOf(schema: Route['body']): string[] {
  const { shape } = (schema ?? {}) as { shape?: object };
  return Object.keys(shape ?? {});
}

const headers = fc.dictionary(
  fc.constantFrom(
    'accept',
    'content-type',
    'idempotency-key',
    'last-event-id',
    'range',
    'expect',
    'x-forwarded-for',
    'upgrade',
  ),
  fc.oneof(
    fc.constantFrom(
      'application/json',
      'application/octet-stream',
      'text/event-stream',
      'websocket',
      'h2c',
      '100-continue',
    ),
    // What Node lets out of the door; the rest is sent as raw bytes below.
    string.map((text) => text.replace(/[^\t\x20-\x7e\x80-\xff]/g, '?').trim()),
  ),
  { maxKeys: 3 },
);

/** In one piece of a URL: as it is where that is possible, else encoded; both must be harmless. */
const piece = fc.tuple(string, fc.boolean()).map(([text, raw]) => {
  const encoded = Buffer.from(text).reduce((all, byte) => `${all}%${byte.toString(16).padStart(2, '0')}`, '');
  return raw && /^[\x21-\x7e]*$/.test(text) ? text : encoded;
});

function requests(route: Route) {
  const queries = fieldsOf(route.query);
  const name = queries.length > 0 ? fc.oneof(fc.constantFrom(...queries), piece) : piece;
  return fc.record({
    // Half of the ids are well-formed, so that what comes after them is looked at too.
    params: fc.array(fc.oneof(piece, fc.constantFrom('sb-00000000000000000000', 'absent')), {
      minLength: 3,
      maxLength: 3,
    }),
    query: fc.array(fc.tuple(name, piece), { maxLength: 4 }),
    headers,
    body: route.method === 'GET' ? fc.constant(undefined) : fc.option(bodies(route), { nil: undefined }),
    json: fc.boolean(),
  });
}

interface Answer {
  status: number;
  type: string;
  body: string;
}

function ask(method: string, path: string, given: Record<string, string>, body: string | undefined): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const upgrade = given.upgrade === undefined ? {} : { connection: 'Upgrade' };
    const length = body === undefined ? {} : { 'content-length': Buffer.byteLength(body) };
    const asked = request(daemon.url, {
      method,
      path,
      headers: { authorization: `Bearer ${TOKEN}`, ...given, ...upgrade, ...length },
      signal: AbortSignal.timeout(LIMIT_MS),
      agent: false,
    });
    asked.on('error', reject);
    asked.on('upgrade', (_reply, socket) => {
      socket.destroy();
      resolve({ status: 101, type: '', body: '' });
    });
    asked.on('response', (reply) => {
      let text = '';
      reply.setEncoding('utf8');
      const done = (): void =>
        resolve({ status: reply.statusCode ?? 0, type: reply.headers['content-type'] ?? '', body: text });
      reply.on('data', (chunk: string) => {
        text += chunk;
      });
      reply.on('end', done).on('error', reject);
      // Events never end: that they began is enough.
      if (reply.headers['content-type'] === 'text/event-stream') {
        done();
        asked.destroy();
      }
    });
    asked.end(body);
  });
}

function expectHarmless({ status, type, body }: Answer): void {
  expect(status).toBeGreaterThanOrEqual(101);
  if (status < 400) return;
  expect(status, body).toBeLessThan(500);
  expect(type).toContain('application/json');
  const error = ErrorBody.parse(JSON.parse(body));
  expect(error.hint).not.toBe('');
  expect(body.length).toBeLessThan(10_000);
  expect(body).not.toContain(daemon.parent);
}

describe('hostile input', () => {
  it.each(Object.entries<Route>(ROUTES))('does not get through to %s', async (_, route) => {
    await fc.assert(
      fc.asyncProperty(requests(route), async ({ params, query, headers: given, body, json }) => {
        let next = 0;
        const path = route.path.replace(/:[a-z]+/g, () => params[next++]!);
        const search = query.map(([name, text]) => `${name}=${text}`).join('&');
        const type = json && body !== undefined ? { 'content-type': 'application/json' } : {};
        expectHarmless(await ask(route.method, `${path}?${search}`, { ...given, ...type }, body));
      }),
      { numRuns: RUNS, endOnFailure: true, includeErrorInReport: true },
    );
  });

  const raw = (bytes: string | Buffer): Promise<string> =>
    new Promise((resolve, reject) => {
      const socket = connect(Number(new URL(daemon.url).port), '127.0.0.1');
      let reply = '';
      socket.setTimeout(LIMIT_MS, () => reject(new Error('no answer')));
      socket.on('data', (chunk) => {
        reply += chunk;
      });
      socket.on('close', () => resolve(reply)).on('error', () => resolve(reply));
      socket.write(bytes);
    });
  const auth = `Host: x\r\nConnection: close\r\nAuthorization: Bearer ${TOKEN}\r\n`;

  it.each([
    ['a path of a megabyte', `GET /${MEGABYTE} HTTP/1.1\r\n${auth}\r\n`],
    ['a header of a megabyte', `GET /version HTTP/1.1\r\n${auth}X: ${MEGABYTE}\r\n\r\n`],
    ['ten thousand headers', `GET /version HTTP/1.1\r\n${auth}${'A: b\r\n'.repeat(10_000)}\r\n`],
    ['no host', `GET /nothing HTTP/1.1\r\nConnection: close\r\nAuthorization: Bearer ${TOKEN}\r\n\r\n`],
    ['a path that climbs', `GET /../../etc/passwd HTTP/1.1\r\n${auth}\r\n`],
    ['a path with a NUL', `GET /v1/snapshots/a\0b HTTP/1.1\r\n${auth}\r\n`],
    ['bytes that are not UTF-8', Buffer.from(`GET /v1/snapshots/\xff\xfe HTTP/1.1\r\n${auth}\r\n`, 'latin1')],
    ['a whole URL', `GET http://other.example/v1/snapshots/x HTTP/1.1\r\n${auth}\r\n`],
    ['two lengths', `POST /v1/sandboxes HTTP/1.1\r\n${auth}Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}`],
    [
      'length and chunks',
      `POST /v1/sandboxes HTTP/1.1\r\n${auth}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
    ],
    ['a negative length', `POST /v1/sandboxes HTTP/1.1\r\n${auth}Content-Length: -1\r\n\r\n`],
    [
      'a chunk that is none',
      `POST /v1/sandboxes HTTP/1.1\r\n${auth}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n`,
    ],
    ['an unknown expectation', `POST /v1/sandboxes HTTP/1.1\r\n${auth}Expect: miracles\r\nContent-Length: 0\r\n\r\n`],
    [
      'an upgrade with a body',
      `POST /v1/sandboxes HTTP/1.1\r\n${auth.replace('close', 'Upgrade')}Upgrade: h2c\r\nContent-Length: 2\r\n\r\n{}`,
    ],
    ['an unknown method', `BREW /v1/sandboxes HTTP/1.1\r\n${auth}\r\n`],
    ['a method of another protocol', `PROPFIND /v1/sandboxes HTTP/1.1\r\n${auth}\r\n`],
    ['no HTTP at all', '\x16\x03\x01\x02\0\x01\0\r\n\r\n'],
    ['HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'],
  ])('%s is refused in the one error shape', async (_, bytes) => {
    const reply = await raw(bytes);
    const status = Number(/^HTTP\/1\.1 (\d+)/.exec(reply)?.[1]);
    const [head, body] = reply.split('\r\n\r\n') as [string, string];
    expect(status).toBeGreaterThanOrEqual(400);
    expectHarmless({ status, type: /content-type: (.*)/i.exec(head)?.[1] ?? '', body });
  });

  it('what follows the last request of a connection is not answered', async () => {
    const reply = await raw(`GET /version HTTP/1.1\r\n${auth}\r\n\0nonsense\r\n\r\n`);
    expect(reply.match(/HTTP\/1\.1/g)?.length ?? 0).toBeLessThanOrEqual(1);
  });

  it('who is refused in the middle of a long request may say the rest of it, and hears why', async () => {
    const path = `/v1?a=${'%78'.repeat(MEGABYTE.length)}`;
    for (let time = 0; time < 20; time++) expect((await ask('POST', path, {}, undefined)).status).toBe(431);
    const json = { 'content-type': 'application/json' };
    const body = MEGABYTE.repeat(20);
    for (let time = 0; time < 10; time++) {
      expect((await ask('POST', '/v1/sandboxes', json, body)).status).toBe(413);
      expect((await ask('POST', '/v1/sandboxes', {}, body)).status).toBe(415);
    }
  });

  it('a tunnel is not opened', async () => {
    expect(await raw(`CONNECT 127.0.0.1:22 HTTP/1.1\r\n${auth}\r\n`)).toMatch(/^HTTP\/1\.1 405 /);
  });

  it('leaves a healthy daemon, and nothing outside its directory', async () => {
    expect(listing()).toEqual(before);
    expect((await daemon.say('GET', '/healthz')).body).toEqual({ ok: true });
    expect((await daemon.say('GET', '/v1/snapshots')).body).toEqual([]);
    expect(({} as { n?: unknown }).n).toBeUndefined();
    expect(daemon.rssMib()).toBeLessThan(600);
  });
});

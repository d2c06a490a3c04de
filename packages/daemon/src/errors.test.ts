import { connect } from 'node:net';
import { ErrorBody } from '@forkd/protocol';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { TestDaemon } from './testing.js';

let daemon: TestDaemon;
beforeAll(async () => {
  daemon = await TestDaemon.start();
});
afterAll(async () => {
  // Whatever was sent, it is still there and well.
  expect((await daemon.call('/healthz')).status).toBe(200);
  await daemon[Symbol.asyncDispose]();
});

function expectError(received: string, status: number, code: string): void {
  const [head = '', body = ''] = received.split('\r\n\r\n');
  expect(head).toMatch(new RegExp(`^HTTP/1.1 ${status} [A-Z]`));
  expect(head.toLowerCase()).toContain('content-type: application/json');
  const error = ErrorBody.parse(JSON.parse(body));
  expect(error.code).toBe(code);
  expect(error.hint).not.toBe('');
  expect(head.toLowerCase()).toContain(`x-request-id: ${error.request_id}`);
}

const END = 'Connection: close\r\n\r\n';
const HOST = 'Host: localhost\r\n';

it.each([
  ['nonsense', '\0\u0001nonsense\r\n\r\n', 400, 'invalid_request'],
  ['a bad request line', 'GET\r\n\r\n', 400, 'invalid_request'],
  ['an unknown method', `BREW / HTTP/1.1\r\n${HOST}${END}`, 400, 'invalid_request'],
  ['another version of HTTP', `GET / HTTP/9.9\r\n${HOST}${END}`, 400, 'invalid_request'],
  ['the start of HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 400, 'invalid_request'],
  ['a header without a name', `GET /version HTTP/1.1\r\n${HOST}: x\r\n${END}`, 400, 'invalid_request'],
  [
    'two lengths',
    `POST /v1/sandboxes HTTP/1.1\r\n${HOST}Content-Length: 1\r\nContent-Length: 2\r\n${END}`,
    400,
    'invalid_request',
  ],
  [
    'a length and chunks',
    `POST /v1/sandboxes HTTP/1.1\r\n${HOST}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n${END}`,
    400,
    'invalid_request',
  ],
  [
    'a chunk of no size',
    `POST /v1/sandboxes HTTP/1.1\r\n${HOST}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n${END}zz\r\n`,
    400,
    'invalid_request',
  ],
  ['no Host', `GET /version HTTP/1.1\r\n${END}`, 400, 'invalid_request'],
  ['a URL that cannot be decoded', `GET /v1/%zz HTTP/1.1\r\n${HOST}${END}`, 400, 'invalid_request'],
  ['a URL that is none', `OPTIONS * HTTP/1.1\r\n${HOST}${END}`, 400, 'invalid_request'],
  ['a huge header', `GET /version HTTP/1.1\r\n${HOST}X: ${'x'.repeat(20_000)}\r\n${END}`, 431, 'headers_too_large'],
  ['a huge URL', `GET /${'x'.repeat(20_000)} HTTP/1.1\r\n${HOST}${END}`, 431, 'headers_too_large'],
  ['a long name', `GET /v1/snapshots/${'x'.repeat(10_000)} HTTP/1.1\r\n${HOST}${END}`, 400, 'invalid_request'],
  [
    'an unknown expectation',
    `POST /v1/sandboxes HTTP/1.1\r\n${HOST}Expect: a-miracle\r\nContent-Length: 2\r\n${END}{}`,
    417,
    'expectation_failed',
  ],
  ['a proxy request', `CONNECT example.com:443 HTTP/1.1\r\n${HOST}${END}`, 405, 'method_not_allowed'],
  ['a method nobody has', `PROPFIND /v1/sandboxes HTTP/1.1\r\n${HOST}${END}`, 405, 'method_not_allowed'],
  ['an unknown route', `GET /v1/nothing HTTP/1.1\r\n${HOST}${END}`, 404, 'route_not_found'],
  [
    'another content type',
    `POST /v1/sandboxes HTTP/1.1\r\n${HOST}Content-Type: text/xml\r\nContent-Length: 1\r\n${END}x`,
    415,
    'unsupported_media_type',
  ],
  [
    'a content type that is none',
    `POST /v1/sandboxes HTTP/1.1\r\n${HOST}Content-Type: ;;\r\nContent-Length: 1\r\n${END}x`,
    415,
    'unsupported_media_type',
  ],
  [
    'a form',
    `POST /v1/sandboxes HTTP/1.1\r\n${HOST}Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 1\r\n${END}x`,
    415,
    'unsupported_media_type',
  ],
  [
    'bad JSON',
    `POST /v1/sandboxes HTTP/1.1\r\n${HOST}Content-Type: application/json\r\nContent-Length: 1\r\n${END}{`,
    400,
    'invalid_request',
  ],
  [
    'an announced body that is too large',
    `POST /v1/sandboxes HTTP/1.1\r\n${HOST}Content-Type: application/json\r\nContent-Length: 99999999\r\n${END}`,
    413,
    'too_large',
  ],
])('%s is answered with the one error shape', async (_, bytes, status, code) => {
  expectError(await daemon.raw(bytes, true), status, code);
});

it.each([
  ['nothing', ''],
  ['half a header', 'GET /version HTTP/1.1\r\nHo'],
])(
  'bug class 11: a client that sends %s and waits is answered 408 and let go',
  { concurrent: true },
  async (_, bytes) => {
    const before = Date.now();
    const received = await daemon.raw(bytes, true);
    expectError(received, 408, 'request_timeout');
    expect(Date.now() - before).toBeLessThan(9_000);
  },
);

it('a client that hangs up in the middle of a request does no harm', async () => {
  const { port } = new URL(daemon.url);
  const head = `POST /v1/sandboxes HTTP/1.1\r\n${HOST}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"n":`;
  for (let i = 0; i < 20; i++)
    await new Promise((done) => {
      const socket = connect(Number(port), '127.0.0.1', () => socket.write(head, () => socket.resetAndDestroy()));
      socket.on('close', done).on('error', done);
    });
});

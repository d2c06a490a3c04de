import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { afterEach, expect, it } from 'vitest';
import { all, Forkd } from './index.js';
import { readTarget } from './options.js';

let server: Server | undefined;
afterEach(() => {
  server?.closeAllConnections();
  server?.close();
});

/** A peer that answers what a test wants: proxies, broken and hostile daemons. */
async function peer(handle: RequestListener, at: string | number = 0): Promise<string> {
  server = createServer(handle);
  if (at === 0) server.listen(0, '127.0.0.1');
  else server.listen(at);
  await once(server, 'listening');
  return at === 0 ? `http://127.0.0.1:${(server.address() as AddressInfo).port}` : '';
}

function json(response: ServerResponse, status: number, body: unknown, headers = {}): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body));
}

const SNAPSHOT = { tag: 'a', dir: '/d', created_at_unix: 1, status: 'ready', bootable: true };

it('nobody there is unreachable, with a hint', async () => {
  const client = new Forkd({ url: 'http://127.0.0.1:1', retries: 0 });
  await expect(client.health()).rejects.toMatchObject({
    code: 'unreachable',
    hint: expect.stringContaining('forkd serve'),
  });
  await expect(new Forkd({ socket: '/nowhere/s', retries: 0 }).health()).rejects.toMatchObject({ code: 'unreachable' });
});

it('speaks over a Unix socket', async () => {
  const folder = mkdtempSync(`${tmpdir()}/forkd-sdk-`);
  await peer((_, response) => json(response, 200, { ok: true }), `${folder}/s`);
  expect(await new Forkd({ socket: `${folder}/s` }).health()).toEqual({ ok: true });
  rmSync(folder, { recursive: true });
});

it('what is given beats the environment, and a URL beats a socket', () => {
  const env = { FORKD_URL: 'http://env:1', FORKD_SOCKET: '/env', FORKD_TOKEN: 'env' };
  expect(readTarget({}, {}).url.href).toBe('http://127.0.0.1:8889/');
  expect(readTarget({}, env)).toMatchObject({ socket: undefined, token: 'env' });
  expect(readTarget({ socket: '/given' }, env).socket).toBe('/given');
  expect(readTarget({ url: 'https://given' }, env).url.host).toBe('given');
  expect(() => readTarget({ url: 'ftp://x' }, {})).toThrowError(/not the URL/);
  expect(() => readTarget({ token: 'secret\n' }, {})).toThrowError(expect.not.stringContaining('secret'));
});

it('a call that only asks is repeated while the daemon is busy, as long as it says', async () => {
  let calls = 0;
  const busy = { error: 'busy', code: 'overloaded', hint: 'wait', request_id: 'r' };
  const url = await peer((_, response) =>
    ++calls < 3 ? json(response, 503, busy, { 'retry-after': '0' }) : json(response, 200, []),
  );
  expect(await new Forkd({ url }).snapshots.list()).toEqual([]);
  expect(calls).toBe(3);
});

it('a call that creates is repeated under one Idempotency-Key, a call that acts is not repeated', async () => {
  const seen: IncomingMessage[] = [];
  const url = await peer((request, response) => {
    seen.push(request);
    json(response, 503, { error: 'busy', code: 'overloaded', hint: '', request_id: '' });
  });
  const client = new Forkd({ url });
  await expect(client.sandboxes.spawn({ snapshot_tag: 'a' })).rejects.toMatchObject({ code: 'overloaded' });
  expect(seen).toHaveLength(3);
  expect(new Set(seen.map(({ headers }) => headers['idempotency-key'])).size).toBe(1);
  seen.length = 0;
  await expect(client.sandboxes.kill('sb-00000000000000000000')).rejects.toMatchObject({ code: 'overloaded' });
  expect(seen).toHaveLength(1);
});

it('what is wrong with the request is not repeated', async () => {
  let calls = 0;
  const url = await peer((_, response) => {
    calls++;
    json(response, 404, { error: 'none', code: 'snapshot_not_found', hint: 'h', request_id: 'r-1' });
  });
  await expect(new Forkd({ url }).snapshots.get('a')).rejects.toMatchObject({
    code: 'snapshot_not_found',
    hint: 'h',
    details: { request_id: 'r-1' },
  });
  expect(calls).toBe(1);
});

it('time limits and cancellation have their own codes', async () => {
  const url = await peer(() => {});
  const client = new Forkd({ url });
  await expect(client.health({ timeout_ms: 50 })).rejects.toMatchObject({ code: 'timeout' });
  await expect(client.health({ signal: AbortSignal.timeout(50) })).rejects.toMatchObject({ code: 'cancelled' });
  await expect(client.health({ signal: AbortSignal.abort() })).rejects.toMatchObject({ code: 'cancelled' });
});

it.each([
  ['a page of a proxy', 200, 'text/html', '<html>'],
  ['broken JSON', 200, 'application/json', '{"ok":'],
  ['another shape', 200, 'application/json', '{"ok":"yes"}'],
])('%s is refused by its schema', async (_, status, type, body) => {
  const url = await peer((_, response) => void response.writeHead(status, { 'content-type': type }).end(body));
  await expect(new Forkd({ url }).health()).rejects.toMatchObject({ code: 'internal' });
});

it('an unknown code and a page of a proxy become the nearest known error', async () => {
  const url = await peer((request, response) =>
    request.url === '/healthz'
      ? json(response, 418, { error: 'new', code: 'teapot', hint: 'h', request_id: 'r' })
      : void response.writeHead(502).end('Bad Gateway'),
  );
  const client = new Forkd({ url, retries: 0 });
  await expect(client.health()).rejects.toMatchObject({ code: 'invalid_request', message: 'new' });
  await expect(client.version()).rejects.toMatchObject({ code: 'unreachable' });
});

it('follows pages to the end', async () => {
  const id = (n: number): string => `sb-${String(n).padStart(20, '0')}`;
  const info = (n: number) => ({
    ...{ id: id(n), snapshot_tag: 'a', netns: null, guest_addr: '', created_at_unix: 1, pid: null },
    ...{ memory_limit_mib: null, has_branched: false, last_branch_memory_path: null, branch_count: 0 },
    ...{ state: 'running', metadata: {}, expires_at_unix: null, vcpus: 1, memory_mib: 1, exit_reason: null },
  });
  const url = await peer((request, response) => {
    const token = new URL(request.url!, 'http://x').searchParams.get('page_token');
    json(response, 200, [info(token ? 2 : 1)], token ? {} : { 'x-next-token': 'more/&' });
  });
  const ids = (await all(new Forkd({ url }).sandboxes.list())).map((sandbox) => sandbox.id);
  expect(ids).toEqual([id(1), id(2)]);
});

it('events go on after the last one seen when the connection breaks', async () => {
  const asked: (string | undefined)[] = [];
  const url = await peer((request, response) => {
    asked.push(request.headers['last-event-id'] as string | undefined);
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    const seq = asked.length;
    const data = JSON.stringify({ seq, type: 'created', at_unix_ms: 1, owner: 'local', snapshot_tag: 'a' });
    const bytes = Buffer.from(`: hello\n\nid: ${seq}\nevent: created\ndata: ${data}\n\n`);
    response.write(bytes.subarray(0, 20));
    setImmediate(() => {
      response.write(bytes.subarray(20));
      setTimeout(() => response.destroy(), 20);
    });
  });
  const seen: number[] = [];
  for await (const { seq } of new Forkd({ url }).events()) if (seen.push(seq) === 3) break;
  expect(seen).toEqual([1, 2, 3]);
  expect(asked).toEqual([undefined, '1', '2']);
});

it('a stream of output that breaks off is an error, not an end', async () => {
  const url = await peer((request, response) => {
    if (request.method === 'GET')
      return json(response, 200, {
        ...{ id: 'sb-00000000000000000000', snapshot_tag: 'a', netns: null, guest_addr: '', created_at_unix: 1 },
        ...{ pid: null, memory_limit_mib: null, has_branched: false, last_branch_memory_path: null, branch_count: 0 },
        ...{ state: 'running', metadata: {}, expires_at_unix: null, vcpus: 1, memory_mib: 1, exit_reason: null },
      });
    response.writeHead(200, { 'content-type': 'application/x-ndjson' });
    response.end(`${JSON.stringify({ type: 'stdout', data: Buffer.from('héllo').toString('base64') })}\n`);
  });
  const sandbox = await new Forkd({ url }).sandboxes.get('sb-00000000000000000000');
  const events = sandbox.execStream(['x']);
  expect(Buffer.from(((await events.next()).value as { data: Uint8Array }).data).toString()).toBe('héllo');
  await expect(events.next()).rejects.toMatchObject({ code: 'unreachable' });
});

it('a token is sent, and connections are used again', async () => {
  const sockets = new Set<unknown>();
  let authorization: string | undefined;
  const url = await peer((request, response) => {
    sockets.add(request.socket);
    authorization = request.headers.authorization;
    json(response, 200, [SNAPSHOT]);
  });
  const client = new Forkd({ url: `${url}/`, token: 't' });
  for (let i = 0; i < 3; i++) await client.snapshots.list();
  expect(sockets.size).toBe(1);
  expect(authorization).toBe('Bearer t');
});

import { createSocket, type Socket } from 'node:dgram';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import type { IncomingHttpHeaders } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { Authority } from '@forkd/egress';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { TestDaemon } from './testing.js';

/** A host of the world, which is at loopback, and a server of names for it. The guest connects to where nobody is. */
const NOWHERE = '203.0.113.9';
const ADDRESSES: Record<string, number[]> = { 'api.example': [127, 0, 0, 1], 'pub.example': [203, 0, 113, 5] };
const directory = mkdtempSync(`${tmpdir()}/forkd-egress-`);
const world = new Authority(directory);
const seen: IncomingHttpHeaders[] = [];
let host: Server;
let names: Socket;
let daemon: TestDaemon;
let port: number;
let id: string;

beforeAll(async () => {
  host = createServer(
    { SNICallback: (_name, done) => done(null, world.contextFor('api.example')) },
    (request, reply) => {
      seen.push(request.headers);
      reply.end('from the world');
    },
  );
  await new Promise<void>((done) => host.listen(0, '127.0.0.1', done));
  ({ port } = host.address() as AddressInfo);
  names = createSocket('udp4', (query, { port: to, address }) => names.send(answer(query), to, address));
  await new Promise<void>((done) => names.bind(0, '127.0.0.1', done));
  writeFileSync(`${directory}/roots.pem`, world.certificate);
  const flags = [
    '--network',
    'tap',
    '--dns',
    `127.0.0.1:${names.address().port}`,
    '--egress-ca',
    `${directory}/roots.pem`,
  ];
  daemon = await TestDaemon.plain(...flags);
  id = await daemon.spawn('plain');
  const certificate = (await daemon.call('/v1/network/ca')).text;
  await daemon.shell(id, 'cat > /root/ca.pem', certificate);
});

afterAll(async () => {
  await daemon?.stop();
  host.close();
  names.close();
  rmSync(directory, { recursive: true, force: true });
});

/** One address, for as long as a minute, to what asks for one of IPv4. */
function answer(query: Buffer): Buffer {
  const labels: string[] = [];
  let at = 12;
  for (; query[at] !== 0; at += 1 + query[at]!) labels.push(query.toString('latin1', at + 1, at + 1 + query[at]!));
  const found = query.readUInt16BE(at + 1) === 1 ? ADDRESSES[labels.join('.').toLowerCase()] : undefined;
  const header = Buffer.from([query[0]!, query[1]!, 0x81, 0x80, 0, 1, 0, found ? 1 : 0, 0, 0, 0, 0]);
  const record = found ? [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ...found] : [];
  return Buffer.concat([header, query.subarray(12, at + 5), Buffer.from(record)]);
}

const allow = (network: object) => daemon.say('PUT', `/v1/sandboxes/${id}/network`, network);

const python = (code: string, through = daemon): Promise<string> => through.shell(id, 'python3 -', code);

/** What comes of a request to a name at an address where nobody is. */
const ask = (name: string, through = daemon): Promise<string> =>
  python(
    `
import socket, ssl
try:
    trust = ssl.create_default_context(cafile='/root/ca.pem')
    s = trust.wrap_socket(socket.create_connection(('${NOWHERE}', ${port}), 20), server_hostname='${name}')
    s.sendall(b'GET / HTTP/1.1\\r\\nHost: ${name}\\r\\nAuthorization: guess\\r\\nConnection: close\\r\\n\\r\\n')
    print(b''.join(iter(lambda: s.recv(4096), b'')).decode().split('\\r\\n\\r\\n')[1])
except OSError as error:
    print(type(error).__name__)
`,
    through,
  );

const resolve = (name: string): Promise<string> =>
  python(`
import socket
try: print(socket.gethostbyname('${name}'))
except OSError as error: print('none')
`);

it('a guest reaches what its policy allows, with a secret it never sees, until the policy says otherwise', async () => {
  expect(await ask('api.example')).toMatch(/Error$/);
  const rules = { 'api.example': { headers: { authorization: 'Bearer unseen' } } };
  const { status } = await allow({ allow: ['api.example', 'pub.example', `127.0.0.1:${port}`], rules });
  expect(status).toBe(200);
  expect(await ask('api.example')).toBe('from the world');
  expect(seen[0]?.authorization).toBe('Bearer unseen');
  expect(await ask('other.example')).toMatch(/Error$/);
  expect([await resolve('pub.example'), await resolve('other.example')]).toEqual(['203.0.113.5', 'none']);

  const { body } = await daemon.call(`/v1/sandboxes/${id}/network`);
  expect(body.counters).toMatchObject({ allowed: 1, open: 0 });
  expect(body.decisions.at(-1)).toMatchObject({ kind: 'dns', name: 'other.example', allowed: false });
  expect(body.decisions).toContainEqual(
    expect.objectContaining({ kind: 'tcp', name: 'other.example', address: NOWHERE, port }),
  );
  expect((await daemon.call('/metrics')).text).toMatch(/^forkd_egress_connections_total\{decision="allowed"\} 1$/m);

  await allow({});
  expect(await ask('api.example')).toMatch(/Error$/);
  expect(seen).toHaveLength(1);
});

it('what gets nowhere is counted, for the sandbox and for all', async () => {
  const drops = async () => (await daemon.call(`/v1/sandboxes/${id}/network`)).body.drops;
  const before = await drops();
  await python(`
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    for _ in range(5): s.sendto(b'anybody there?', ('${NOWHERE}', 123))
`);
  const after = await drops();
  expect(after).toMatchObject({ udp: before.udp + 5, spoofed: before.spoofed });
  const text = (await daemon.call('/metrics')).text;
  const all = Number(/^forkd_network_drops_total\{reason="udp"\} (\d+)$/m.exec(text)?.[1]);
  expect(all).toBeGreaterThanOrEqual(after.udp);
});

it('UDP goes where an address that is allowed lets it, and its answers come back', async () => {
  const echo = createSocket('udp4', (bytes, { port: to, address }) => echo.send(`${bytes}!`, to, address));
  await new Promise<void>((done) => echo.bind(0, '127.0.0.1', done));
  const at = echo.address().port;
  // As IPv6 writes 127.0.0.1: what is only that to a guest is the guest itself.
  const say = (to: string, patience: number) =>
    python(`
import socket
heard = []
with socket.socket(socket.AF_INET6 if ':' in '${to}' else socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.settimeout(${patience})
    for n in range(3):
        try:
            s.sendto(f'{n}'.encode(), ('${to}', ${at}))
            heard.append(s.recv(100).decode())
        except OSError as error: heard.append(type(error).__name__)
print(*heard)
`);
  const HOST = '64:ff9b::7f00:1';
  await allow({ allow: [`127.0.0.1:${at}`] });
  expect(await say(HOST, 10)).toBe('0! 1! 2!');
  expect(await say(NOWHERE, 0.3)).toBe('TimeoutError TimeoutError TimeoutError');
  const { body } = await daemon.call(`/v1/sandboxes/${id}/network`);
  expect(body.counters.open).toBe(1);
  expect(body.decisions).toContainEqual(
    expect.objectContaining({ kind: 'udp', address: '127.0.0.1', port: at, allowed: true }),
  );
  expect(body.decisions.at(-1)).toMatchObject({ kind: 'udp', address: NOWHERE, port: at, allowed: false });
  // Who begins more than it may is not heard for a while.
  await python(`
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    for port in range(2000, 2400): s.sendto(b'', ('${NOWHERE}', port))
`);
  const flooded = (await daemon.call(`/v1/sandboxes/${id}/network`)).body;
  expect(flooded.counters.denied - body.counters.denied).toBeGreaterThanOrEqual(90);
  expect(flooded.counters.denied - body.counters.denied).toBeLessThan(350);
  const before = flooded.drops.udp;
  const closed = await allow({});
  expect(closed.body.counters.open).toBe(0);
  expect(await say(HOST, 0.3)).toBe('TimeoutError TimeoutError TimeoutError');
  // It does not even come to the daemon.
  expect((await daemon.call(`/v1/sandboxes/${id}/network`)).body.drops.udp).toBe(before + 3);
  echo.close();
});

it('it goes on so in a fork, and after the daemon was killed', async () => {
  await allow({ allow: ['api.example', `127.0.0.1:${port}`] });
  const source = id;
  const forked = await daemon.say('POST', `/v1/sandboxes/${source}/fork`, { n: 1 });
  id = forked.body.results[0].sandbox.id;
  expect(await ask('api.example')).toBe('from the world');
  daemon.signal('SIGKILL');
  await daemon.restart();
  expect(await ask('api.example')).toBe('from the world');
  const tag = forked.body.snapshot.tag;
  expect((await daemon.say('POST', `/v1/sandboxes/${source}/rollback`, { snapshot_tag: tag })).status).toBe(200);
  id = source;
  expect(await ask('api.example')).toBe('from the world');
});

it('a network that a daemon cannot take over is said to be lost, until one can', async () => {
  const wire = async (of: TestDaemon) => (await of.call(`/v1/sandboxes/${id}/network`)).body.wire;
  expect(await wire(daemon)).toBe('tap');
  daemon.signal('SIGKILL');
  await daemon.ended();
  const without = await TestDaemon.start(['--network', 'none'], daemon.root);
  expect(await wire(without)).toBe('lost');
  const said = await without.fetch('GET', '/v1/events?since=0&types=network.lost');
  const { value } = await said.body!.getReader().read();
  expect(Buffer.from(value!).toString()).toContain(`"sandbox_id":"${id}"`);
  expect(without.log).toContain('its network could not be taken over: this forkd runs without network');
  expect(await ask('api.example', without)).toBe('ConnectionRefusedError');
  without.signal('SIGKILL');
  await daemon.restart();
  expect(await wire(daemon)).toBe('tap');
  expect(await ask('api.example')).toBe('from the world');
});

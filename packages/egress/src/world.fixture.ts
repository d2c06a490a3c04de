import { createSocket } from 'node:dgram';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer as createHttp } from 'node:http';
import { type AddressInfo, connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { Authority } from './authority.js';
import { Egress } from './egress.js';
import { askServers } from './names.js';
import { policy, question, readAnswer } from './testing.js';

/** Run in a network namespace of its own that has these addresses: a small internet. Prints what a guest sees of it. */
const [FOUR, SIX, NAMES] = ['203.0.113.1', '2001:db8::1', '203.0.113.53'];
/** The first is nobody's. */
const ZONE: Record<string, Record<number, string>> = {
  'web.example': { 1: 'cb007101' },
  'six.example': { 28: '20010db8000000000000000000000001' },
  'half.example': { 1: 'cb007101', 28: '20010db80000000000000000000000ff' },
  'inside.example': { 1: '7f000001' },
};

const directory = mkdtempSync(`${tmpdir()}/forkd-world-`);
const names = createSocket('udp4', (query, { port, address }) => names.send(answer(query), port, address));
await new Promise<void>((done) => names.bind(53, NAMES, done));
for (const host of [FOUR, SIX, '127.0.0.1']) {
  const server = createHttp((_request, reply) => reply.end(`web at ${host}`));
  await new Promise<void>((done) => server.listen(80, host, done));
}
const egress = new Egress({
  authority: new Authority(directory),
  lookUp: askServers([NAMES!]),
  settingsOf: () => ({ policy: policy({ allow: ['*.example:80'] }), rules: {} }),
  own: () => new Set(),
  destinationOf: () => ({ address: '203.0.113.200', port: 80 }),
});
const [tcp, dnsTcp, dns] = [createServer(), createServer(), createSocket('udp4')];
await new Promise<void>((done) => tcp.listen(0, '127.0.0.1', done));
await new Promise<void>((done) => dns.bind(0, '127.0.0.1', done));
egress.attach('sb', { tcp, dns, dnsTcp });

const hosts = [...Object.keys(ZONE), 'nobody.example', 'other.test'];
const bodies = await Promise.all(hosts.map(fetched));
const answers = await Promise.all(hosts.map((host) => resolved(host, host === 'six.example' ? 28 : 1)));
console.log(
  JSON.stringify(Object.fromEntries(hosts.map((host, index) => [host, [bodies[index], ...answers[index]!]]))),
);
rmSync(directory, { recursive: true });
process.exit();

function answer(query: Buffer): Buffer {
  const end = query.indexOf(0, 12);
  // Lengths are control characters; the zone has only letters.
  const name = query.toString('latin1', 13, end).replace(/[^a-z]/g, '.');
  const data = ZONE[name]?.[query.readUInt16BE(end + 1)];
  const header = Buffer.from([query[0]!, query[1]!, 0x81, ZONE[name] ? 0x80 : 0x83, 0, 1, 0, data ? 1 : 0, 0, 0, 0, 0]);
  const record = data
    ? Buffer.from(
        `c00c${query.toString('hex', end + 1, end + 5)}0000003c00${(data.length / 2).toString(16).padStart(2, '0')}${data}`,
        'hex',
      )
    : Buffer.alloc(0);
  return Buffer.concat([header, query.subarray(12, end + 5), record]);
}

async function fetched(host: string): Promise<string> {
  const socket = connect((tcp.address() as AddressInfo).port, '127.0.0.1');
  socket.end(`GET / HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`);
  let text = '';
  socket.on('data', (chunk) => {
    text += chunk;
  });
  const how = await new Promise<string>((done) => socket.once('error', () => done('cut')).once('end', () => done('')));
  return how || text.split('\r\n\r\n')[1]!;
}

async function resolved(host: string, type: number): Promise<string[]> {
  const client = createSocket('udp4');
  const reply = new Promise<Buffer>((done) => client.once('message', done));
  client.send(question(host, type), dns.address().port, '127.0.0.1');
  return readAnswer(await reply).addresses;
}

import { createSocket, type Socket } from 'node:dgram';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import type { NetworkPolicy } from '@forkd/protocol';
import { afterAll, expect, it } from 'vitest';
import { Authority } from './authority.js';
import { Egress } from './egress.js';
import { policy } from './testing.js';
import { type Datagram, udpPolicy } from './udp.js';

const directory = mkdtempSync(`${tmpdir()}/forkd-udp-`);
const host = await bound();
host.on('message', (bytes, { port, address }) => host.send(`${bytes}!`, port, address));
const guest = await bound();
let claimed = 0;
let taker: ((datagram: Datagram) => void) | undefined;
const most = new Map<string, number>();
const egress = new Egress({
  authority: new Authority(directory),
  lookUp: async () => [],
  settingsOf: () => ({ policy: policy(), rules: {}, owner: 'ann' }),
  mostOf: (owner) => most.get(owner),
  own: () => new Set(),
});
const udp = {
  take(next: typeof taker): void {
    taker = next;
  },
};
egress.attach('sb', { tcp: createServer(), dns: createSocket('udp4'), dnsTcp: createServer(), udp });

afterAll(() => {
  egress.close();
  for (const socket of [host, guest]) socket.close();
  rmSync(directory, { recursive: true });
});

async function bound(): Promise<Socket> {
  const socket = createSocket('udp4');
  await new Promise<void>((done) => socket.bind(0, '127.0.0.1', done));
  return socket;
}

function allow(given: Partial<NetworkPolicy>): void {
  egress.change('sb', { policy: policy(given), rules: {}, owner: 'ann' });
}

const between = (to: string, port = guest.address().port) => ({
  from: { address: '127.0.0.1', port },
  to: { address: to, port: host.address().port },
});

/** A flow as the helper makes one. */
async function begun(
  first: string,
  to = '::ffff:127.0.0.1',
  port?: number,
): Promise<{ socket: Socket; isClosed: () => boolean }> {
  const socket = await bound();
  let closed = false;
  socket.once('close', () => {
    closed = true;
  });
  taker?.({ ...between(to, port), bytes: Buffer.from(first), flow: { socket, claim: () => claimed++ } });
  return { socket, isClosed: () => closed };
}

const heard = (): Promise<string> => new Promise((done) => guest.once('message', (bytes) => done(`${bytes}`)));
const last = () => egress.report('sb').decisions.at(-1);

it('is opened by presets and by addresses, never by a name', () => {
  const opened = (given: Partial<NetworkPolicy>): boolean => {
    allow(given);
    return taker !== undefined;
  };
  expect(opened({})).toBe(false);
  expect(opened({ allow: ['a.example:443', '*.example'], deny: ['10.0.0.0/8'] })).toBe(false);
  expect(opened({ allow: ['10.0.0.0/8:123'] })).toBe(true);
  expect(opened({ preset: 'internet' })).toBe(true);
  const given = policy({ preset: 'internet', allow: ['10.0.0.1:1', '10.0.0.2', 'a.example:1'], deny: ['8.8.8.8'] });
  expect(udpPolicy(given)).toEqual({ preset: 'internet', allow: ['10.0.0.1:1', '10.0.0.2'], deny: ['8.8.8.8'] });
});

it('a flow goes both ways until the policy says otherwise', async () => {
  const entry = `127.0.0.1:${host.address().port}`;
  allow({ allow: [entry] });
  let answer = heard();
  const { socket, isClosed } = await begun('one');
  expect(await answer).toBe('one!');
  expect(claimed).toBe(1);
  answer = heard();
  // Still on the way when the socket was made.
  taker?.({ ...between('::ffff:127.0.0.1'), bytes: Buffer.from('and') });
  expect(await answer).toBe('and!');
  answer = heard();
  guest.send('two', socket.address().port, '127.0.0.1');
  expect(await answer).toBe('two!');
  expect(last()).toMatchObject({ kind: 'udp', allowed: true, rule: entry, address: '127.0.0.1' });
  expect(egress.report('sb').counters).toMatchObject({ open: 1, bytes_sent: 9, bytes_received: 12 });

  allow({ allow: [entry], deny: ['127.0.0.0/8'] });
  await expect.poll(isClosed).toBe(true);
  expect(last()).toMatchObject({ kind: 'udp', allowed: false, rule: '127.0.0.0/8' });
  expect(egress.report('sb').counters.open).toBe(0);
});

it('what is not allowed, or too much, is closed at once', async () => {
  allow({ preset: 'internet' });
  for (const [to, rule] of [
    ['::ffff:127.0.0.1', 'a local address'],
    ['::ffff:10.0.0.1', 'a private address'],
    ['64:ff9b::a9fe:a9fe', 'a metadata address'],
  ] as const) {
    const { isClosed } = await begun('x', to);
    await expect.poll(isClosed).toBe(true);
    expect(last()).toMatchObject({ allowed: false, rule });
  }
  allow({ allow: [`127.0.0.1:${host.address().port}`] });
  for (let n = 0; n < 128; n++) expect((await begun('x', '::ffff:127.0.0.1', 10_000 + n)).isClosed()).toBe(false);
  await begun('x');
  expect(last()).toMatchObject({ allowed: false, rule: 'too many connections' });
  allow({});
  expect(egress.report('sb').counters.open).toBe(0);

  most.set('ann', 0);
  allow({ allow: [`127.0.0.1:${host.address().port}`] });
  await begun('x');
  expect(last()).toMatchObject({ allowed: false, rule: 'too many connections of ann' });
});

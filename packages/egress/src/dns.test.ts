import { createSocket } from 'node:dgram';
import { connect, createServer } from 'node:net';
import { addressText, type NetworkPolicy } from '@forkd/protocol';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Dns } from './dns.js';
import { parseQuery } from './dns-packet.js';
import { type LookUp, Names } from './names.js';
import { Outlet } from './outlet.js';
import { policy, question, readAnswer } from './testing.js';

const WORLD: Record<string, string[]> = {
  'api.example.com': ['203.0.113.1', '2001:db8::1'],
  'mixed.example.com': ['10.0.0.5', '203.0.113.2'],
  'rebind.example.com': ['169.254.169.254', '127.0.0.1', '10.0.0.1', '::1', '::ffff:7f00:1'],
  'large-with-a-name-of-so-many-letters-that-it-does-not-fit.example.com': Array.from(
    { length: 16 },
    (_, index) => `2001:db8::${index}`,
  ),
};

function dnsOf(given: Partial<NetworkPolicy>, lookUp?: LookUp) {
  let asked = 0;
  let floods = 0;
  const world: LookUp = async (name, family) => {
    asked++;
    const addresses = WORLD[name];
    if (!addresses)
      throw Object.assign(new Error(), { code: name === 'broken.example.com' ? 'ESERVFAIL' : 'ENOTFOUND' });
    return addresses.filter((a) => a.includes(':') === (family === 6)).map((address) => ({ address, ttl: 30 }));
  };
  const outlet = new Outlet('sb', { policy: policy(given), rules: {} }, { own: () => new Set(), onDenied: () => {} });
  const dns = new Dns(outlet, new Names(lookUp ?? world), () => floods++);
  const ask = async (name: string, type = 1) => readAnswer(await dns.answer(question(name, type), true));
  return { dns, outlet, ask, asked: () => asked, floods: () => floods };
}

const OPEN = { allow: ['*.example.com'] };

describe('answers', () => {
  it('addresses of names that may be reached, once looked up', async () => {
    const { ask, outlet, asked } = dnsOf(OPEN);
    expect(await ask('api.example.com')).toMatchObject({ code: 0, addresses: ['203.0.113.1'], ttl: 30 });
    expect(await ask('API.Example.COM')).toMatchObject({ code: 0, addresses: ['203.0.113.1'] });
    expect(await ask('api.example.com', 28)).toMatchObject({ code: 0, addresses: ['2001:db8::1'] });
    expect(asked()).toBe(2);
    expect(outlet.namesAt('203.0.113.1')).toEqual(['api.example.com']);
    expect(outlet.namesAt('::ffff:203.0.113.1')).toEqual(['api.example.com']);
  });

  it('nothing is asked of anybody for a name that may not be reached', async () => {
    const { ask, outlet, asked } = dnsOf(OPEN);
    expect(await ask('secret-data.evil.example')).toMatchObject({ code: 5, addresses: [] });
    expect(await ask('example.com')).toMatchObject({ code: 5 });
    expect(asked()).toBe(0);
    expect(outlet.counters.dns_denied).toBe(2);
    expect(outlet.decisions[0]).toMatchObject({ kind: 'dns', name: 'secret-data.evil.example', allowed: false });
  });

  it('addresses the policy forbids are left out: a name cannot point into the network of the host', async () => {
    const { ask, outlet } = dnsOf(OPEN);
    expect(await ask('mixed.example.com')).toMatchObject({ code: 0, addresses: ['203.0.113.2'] });
    expect(await ask('rebind.example.com')).toMatchObject({ code: 5, addresses: [] });
    expect(await ask('rebind.example.com', 28)).toMatchObject({ code: 5, addresses: [] });
    expect(outlet.namesAt('10.0.0.1')).toEqual([]);
  });

  it('other kinds of records: there are none; other names: there are none; trouble: trouble', async () => {
    const { ask } = dnsOf(OPEN);
    for (const type of [5, 15, 16, 33, 64, 65, 255])
      expect(await ask('api.example.com', type)).toMatchObject({ code: 0, addresses: [] });
    expect(await ask('nobody.example.com')).toMatchObject({ code: 3 });
    expect(await ask('broken.example.com')).toMatchObject({ code: 2 });
    expect(await ask('2130706433')).toMatchObject({ code: 5 });
  });

  it('what does not fit is to be asked for over TCP', async () => {
    const { dns } = dnsOf(OPEN);
    const packet = question('large-with-a-name-of-so-many-letters-that-it-does-not-fit.example.com', 28);
    expect(readAnswer(await dns.answer(packet, true))).toMatchObject({ isCut: true, addresses: [] });
    expect(readAnswer(await dns.answer(packet, false)).addresses).toHaveLength(16);
    const roomy = question('large-with-a-name-of-so-many-letters-that-it-does-not-fit.example.com', 28, {
      options: 1232,
    });
    expect(readAnswer(await dns.answer(roomy, true)).addresses).toHaveLength(16);
  });

  it('over sockets, UDP and TCP', async () => {
    const { dns } = dnsOf(OPEN);
    const udp = createSocket('udp4');
    const tcp = createServer();
    await new Promise<void>((done) => udp.bind(0, '127.0.0.1', done));
    await new Promise<void>((done) => tcp.listen(0, '127.0.0.1', done));
    dns.serve(udp, tcp);
    const client = createSocket('udp4');
    const answer = new Promise<Buffer>((done) => client.once('message', done));
    client.send(question('api.example.com', 1), udp.address().port, '127.0.0.1');
    expect(readAnswer(await answer).addresses).toEqual(['203.0.113.1']);
    const packet = question('api.example.com', 28);
    const socket = connect((tcp.address() as { port: number }).port, '127.0.0.1');
    // In pieces, two questions at once.
    const bytes = Buffer.concat([Buffer.from([0, packet.length]), packet]);
    socket.write(bytes.subarray(0, 5));
    socket.write(Buffer.concat([bytes.subarray(5), bytes]));
    let received = Buffer.alloc(0);
    for await (const chunk of socket) {
      received = Buffer.concat([received, chunk as Buffer]);
      if (received.length >= 2 * (2 + received.readUInt16BE(0))) break;
    }
    expect(readAnswer(received.subarray(2, 2 + received.readUInt16BE(0))).addresses).toEqual(['2001:db8::1']);
    dns.close();
    client.close();
    udp.close();
    tcp.close();
  });
});

describe('bounds', () => {
  it('a flood is dropped, counted, and said once', async () => {
    const { dns, outlet, floods, asked } = dnsOf({ preset: 'internet' });
    const replies = await Promise.all(
      Array.from({ length: 3_000 }, (_, index) => dns.answer(question(`n${index}.example.com`, 1), true)),
    );
    expect(replies.filter(Boolean).length).toBeLessThanOrEqual(64);
    expect(outlet.counters.dns_dropped).toBeGreaterThan(2_900);
    expect(asked()).toBeLessThanOrEqual(64);
    expect(floods()).toBe(1);
  });

  it('one that waits for the same name does not ask again', async () => {
    let asked = 0;
    const { ask } = dnsOf({ preset: 'internet' }, async () => {
      asked++;
      await new Promise((done) => setTimeout(done, 20));
      return [{ address: '203.0.113.1', ttl: 1 }];
    });
    await Promise.all(Array.from({ length: 20 }, () => ask('a.example')));
    expect(asked).toBe(1);
  });
});

describe('packets', () => {
  it.each([
    ['an answer', Buffer.from('000080000001000000000000', 'hex'), undefined],
    ['too short', Buffer.from('0000', 'hex'), undefined],
    ['no question', Buffer.from('000001000000000000000000', 'hex'), 'malformed'],
    ['two questions', Buffer.from('000001000002000000000000', 'hex'), 'malformed'],
    ['another operation', Buffer.from('000028000001000000000000', 'hex'), 'notImplemented'],
    ['a pointer to itself', Buffer.from('000001000001000000000000c00c00010001', 'hex'), 'malformed'],
    ['a label that is cut off', Buffer.from('0000010000010000000000003f61', 'hex'), 'malformed'],
    ['no type', Buffer.from('0000010000010000000000000161000001', 'hex'), 'malformed'],
    ['another class', Buffer.from('000001000001000000000000016100000100ff', 'hex'), 'notImplemented'],
    ['more after it', Buffer.from('00000100000100000000000001610000010001ff', 'hex'), 'malformed'],
    ['a name that is too long', question('a'.repeat(50).concat('.').repeat(6), 1), 'malformed'],
  ])('%s', (_what, packet, said) => {
    expect(parseQuery(packet)).toEqual(said);
  });

  it('a label with a dot in it is no name', () => {
    const packet = Buffer.from('0000010000010000000000000b6170692e6578616d706c6503636f6d0000010001', 'hex');
    expect(parseQuery(packet)).toMatchObject({ name: undefined });
  });

  it('no bytes make it fail, and every answer can be read', async () => {
    const { dns } = dnsOf(OPEN);
    const start = question('api.example.com', 1, { options: 4096 });
    const damaged = fc.tuple(fc.nat(start.length - 1), fc.nat(255), fc.nat(start.length)).map(([at, byte, end]) => {
      const packet = Buffer.from(start);
      packet[at] = byte;
      return packet.subarray(0, Math.max(end, at));
    });
    const anyBytes = fc.uint8Array({ maxLength: 600 }).map((bytes) => Buffer.from(bytes));
    await fc.assert(
      fc.asyncProperty(fc.oneof(damaged, anyBytes), async (packet) => {
        const reply = await dns.answer(packet, true);
        if (reply)
          expect(readAnswer(reply).addresses.every((address) => ['203.0.113.1', '2001:db8::1'].includes(address))).toBe(
            true,
          );
      }),
      { numRuns: 390 },
    );
  });

  it('addresses are written as everybody does', () => {
    const written = (value: bigint, family: 4 | 6): string => addressText({ family, value });
    expect([written(0n, 6), written(1n, 6), written(1n << 127n, 6), written(0xcb007101n, 4)]).toEqual([
      '::',
      '::1',
      '8000::',
      '203.0.113.1',
    ]);
  });
});

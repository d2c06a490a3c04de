import { createServer } from 'node:net';
import { connect } from 'node:tls';
import fc from 'fast-check';
import { beforeAll, expect, it } from 'vitest';
import { sniff } from './sniff.js';

let hello: Buffer;

/** What a real client sends first. */
beforeAll(async () => {
  hello = await new Promise<Buffer>((done) => {
    const server = createServer((socket) => {
      socket
        .on('error', () => {})
        .once('data', (chunk: Buffer) => {
          done(chunk);
          socket.destroy();
          server.close();
        });
    });
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number };
      connect({ port, host: '127.0.0.1', servername: 'Api.Example.com' }).on('error', () => {});
    });
  });
});

const named = { kind: 'tls', name: 'api.example.com', isHidden: false };

/** The same message in records of this size. */
function fragmented(size: number): Buffer {
  const message = hello.subarray(5);
  const records: Buffer[] = [];
  for (let at = 0; at < message.length; at += size) {
    const part = message.subarray(at, at + size);
    records.push(Buffer.from([22, 3, 1, part.length >> 8, part.length & 255]), part);
  }
  return Buffer.concat(records);
}

function withExtension(type: number, data: Buffer): Buffer {
  const extension = Buffer.concat([Buffer.from([type >> 8, type & 255, data.length >> 8, data.length & 255]), data]);
  const changed = Buffer.concat([hello, extension]);
  // Record, handshake and extensions are longer by that; extensions begin after session and ciphers.
  changed.writeUInt16BE(changed.readUInt16BE(3) + extension.length, 3);
  changed.writeUIntBE(changed.readUIntBE(6, 3) + extension.length, 6, 3);
  let at = 5 + 4 + 34;
  at += 1 + changed[at]!;
  at += 2 + changed.readUInt16BE(at);
  at += 1 + changed[at]!;
  changed.writeUInt16BE(changed.readUInt16BE(at) + extension.length, at);
  return changed;
}

it('finds the name, however it is cut up', () => {
  expect(sniff(hello)).toEqual(named);
  for (const size of [1, 2, 7, 100, 1000]) expect(sniff(fragmented(size))).toEqual(named);
  for (let length = 1; length < hello.length; length++) expect(sniff(hello.subarray(0, length))).toBe('more');
});

it('what could hide a name hides it', () => {
  const hidden = { name: undefined, isHidden: true };
  expect(sniff(withExtension(0x1234, Buffer.alloc(3)))).toEqual(named);
  expect(sniff(withExtension(0xfe0d, Buffer.alloc(8)))).toMatchObject(hidden);
  expect(sniff(withExtension(0, Buffer.from('0008000005612e636f6d', 'hex')))).toMatchObject(hidden);
  const other = Buffer.concat([hello.subarray(0, 5 + 20), Buffer.from([23, 3, 3, 0, 1, 0])]);
  other.writeUInt16BE(20, 3);
  expect(sniff(other)).toMatchObject(hidden);
});

it.each([
  ['GET / HTTP/1.1\r\n', 'http', false],
  ['M-SEARCH * HTTP/1.0\r\n', 'http', false],
  ['PRI * HTTP/2.0\r\n', 'other', true],
  ['GET / HTTP/1.1\n', 'other', true],
  ['\r\nGET / HTTP/1.1\r\n', 'other', true],
  ['EHLO me\r\n', 'other', false],
  ['SSH-2.0-x\r\n', 'other', false],
  ['\0\0\0\x08', 'other', false],
  [`GET /${'a'.repeat(20_000)}`, 'other', true],
])('%j', (text, kind, isHidden) => {
  expect(sniff(Buffer.from(text.slice(0, 30_000), 'latin1'))).toMatchObject({ kind, isHidden });
});

it('no bytes make it fail, and none make it wait for ever', () => {
  const damaged = fc.tuple(fc.nat(2_000), fc.nat(255)).map(([at, byte]) => {
    const bytes = Buffer.from(hello);
    bytes[at % bytes.length] = byte;
    return bytes;
  });
  const anyBytes = fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.concat([Buffer.from([22, 3, 1]), bytes]));
  fc.assert(
    fc.property(fc.oneof(damaged, anyBytes), (bytes) => {
      const result = sniff(bytes);
      if (result === 'more') expect(sniff(Buffer.concat([bytes, Buffer.alloc(80_000, 0xff)]))).not.toBe('more');
    }),
    { numRuns: 2_000 },
  );
});

import { addressText, NetworkPolicy } from '@forkd/protocol';

/** A policy as a request would give it. */
export function policy(given: Partial<NetworkPolicy> = {}): NetworkPolicy {
  return NetworkPolicy.parse(given);
}

/** A packet that asks for a name. */
export function question(name: string, type: number, { options = 0 } = {}): Buffer {
  const labels = name
    .split('.')
    .filter(Boolean)
    .flatMap((label) => [Buffer.from([label.length]), Buffer.from(label)]);
  const header = Buffer.from([0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, options ? 1 : 0]);
  const extra = options ? Buffer.from([0, 0, 41, options >> 8, options & 255, 0, 0, 0, 0, 0, 0]) : Buffer.alloc(0);
  return Buffer.concat([header, ...labels, Buffer.from([0, type >> 8, type & 255, 0, 1]), extra]);
}

/** What a packet says that answers one question. */
export function readAnswer(packet: Buffer | undefined) {
  if (!packet) throw new Error('there was no answer');
  const flags = packet.readUInt16BE(2);
  let at = 12;
  if (packet.readUInt16BE(4) === 1) {
    while (packet[at] !== 0) at += 1 + packet[at]!;
    at += 5;
  }
  const addresses: string[] = [];
  let ttl = 0;
  for (let left = packet.readUInt16BE(6); left > 0; left--) {
    ttl = packet.readUInt32BE(at + 6);
    const length = packet.readUInt16BE(at + 10);
    const value = BigInt(`0x${packet.toString('hex', at + 12, at + 12 + length)}`);
    addresses.push(addressText({ family: length === 4 ? 4 : 6, value }));
    at += 12 + length;
  }
  return { id: packet.readUInt16BE(0), code: flags & 15, isCut: (flags & 0x200) !== 0, addresses, ttl };
}

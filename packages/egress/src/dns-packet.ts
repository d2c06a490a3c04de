import { type Address, hostName } from '@forkd/protocol';

export const A = 1;
export const AAAA = 28;
const OPT = 41;
const IN = 1;

/** Answers of these kinds are all there are. */
export const CODES = { ok: 0, malformed: 1, failed: 2, unknownName: 3, notImplemented: 4, refused: 5 } as const;
export type Code = keyof typeof CODES;

/** No question is longer: a name of 255 bytes and what is around it, with room for options. */
const LONGEST_QUERY = 1232;
/** What a client that says nothing can take in one packet, and the most we send to one that says more. */
const SMALLEST_REPLY = 512;
const LARGEST_REPLY = 1232;

export interface Query {
  id: number;
  isRecursive: boolean;
  /** As it was sent, to be sent back. */
  question: Buffer;
  /** `undefined`: no name a host could have. */
  name: string | undefined;
  type: number;
  /** How long an answer may be, over UDP. */
  room: number;
  /** It understands options, so its answer has one. */
  hasOptions: boolean;
}

/** `Code`: all that can be said to it. `undefined`: nothing is to be said, since an answer might start a loop. */
export function parseQuery(packet: Buffer): Query | Exclude<Code, 'ok'> | undefined {
  if (packet.length < 12 || packet.readUInt16BE(2) & 0x8000) return undefined;
  if (packet.length > LONGEST_QUERY) return 'malformed';
  const flags = packet.readUInt16BE(2);
  if (flags & 0x7800) return 'notImplemented';
  const [questions, answers, authorities, additional] = [4, 6, 8, 10].map((at) => packet.readUInt16BE(at));
  if (questions !== 1 || answers !== 0 || authorities !== 0 || additional! > 1) return 'malformed';
  const labels: string[] = [];
  let at = 12;
  for (;;) {
    const length = packet[at];
    // Nothing comes before the question that it could point to.
    if (length === undefined || length > 63) return 'malformed';
    at += 1 + length;
    if (length === 0) break;
    if (at - 12 > 254 || at > packet.length) return 'malformed';
    labels.push(packet.toString('latin1', at - length, at));
  }
  if (at + 4 > packet.length) return 'malformed';
  const type = packet.readUInt16BE(at);
  if (packet.readUInt16BE(at + 2) !== IN) return 'notImplemented';
  const question = packet.subarray(12, at + 4);
  const options = readOptions(packet.subarray(at + 4), additional!);
  if (options === 'malformed') return options;
  // A dot inside of a label is not one between two.
  const name = labels.some((label) => label.includes('.')) ? undefined : hostName(labels.join('.'));
  return { id: packet.readUInt16BE(0), isRecursive: (flags & 0x100) !== 0, question, name, type, ...options };
}

function readOptions(rest: Buffer, count: number): Pick<Query, 'room' | 'hasOptions'> | 'malformed' {
  if (count === 0) return rest.length === 0 ? { room: SMALLEST_REPLY, hasOptions: false } : 'malformed';
  if (rest.length < 11 || rest[0] !== 0 || rest.readUInt16BE(1) !== OPT) return 'malformed';
  if (rest.length !== 11 + rest.readUInt16BE(9)) return 'malformed';
  const room = Math.min(LARGEST_REPLY, Math.max(SMALLEST_REPLY, rest.readUInt16BE(3)));
  return { room, hasOptions: true };
}

/** An answer to a packet that is no question we understand. */
export function refusal(packet: Buffer, code: Exclude<Code, 'ok'>): Buffer {
  const reply = Buffer.alloc(12);
  packet.copy(reply, 0, 0, 2);
  reply.writeUInt16BE(0x8000 | (packet.readUInt16BE(2) & 0x7900) | CODES[code], 2);
  return reply;
}

export interface Answer {
  code: Code;
  addresses: Address[];
  ttl: number;
}

/** `room`: what does not fit is left out, and the client told to ask again over TCP. */
export function encodeAnswer(query: Query, { code, addresses, ttl }: Answer, room: number): Buffer {
  const records = addresses.map((address) => {
    const bytes = bytesOf(address);
    const record = Buffer.alloc(12 + bytes.length);
    // The name is the one in the question, at byte 12.
    record.writeUInt16BE(0xc00c, 0);
    record.writeUInt16BE(query.type, 2);
    record.writeUInt16BE(IN, 4);
    record.writeUInt32BE(ttl, 6);
    record.writeUInt16BE(bytes.length, 10);
    bytes.copy(record, 12);
    return record;
  });
  const options = Buffer.alloc(query.hasOptions ? 11 : 0);
  if (query.hasOptions) {
    options.writeUInt16BE(OPT, 1);
    options.writeUInt16BE(LARGEST_REPLY, 3);
  }
  const size = 12 + query.question.length + options.length + records.reduce((sum, { length }) => sum + length, 0);
  const isCut = size > room;
  const header = Buffer.alloc(12);
  header.writeUInt16BE(query.id, 0);
  header.writeUInt16BE(0x8080 | (query.isRecursive ? 0x100 : 0) | (isCut ? 0x200 : 0) | CODES[code], 2);
  header.writeUInt16BE(1, 4);
  header.writeUInt16BE(isCut ? 0 : records.length, 6);
  header.writeUInt16BE(query.hasOptions ? 1 : 0, 10);
  return Buffer.concat([header, query.question, ...(isCut ? [] : records), options]);
}

function bytesOf({ family, value }: Address): Buffer {
  return Buffer.from(value.toString(16).padStart(family === 4 ? 8 : 32, '0'), 'hex');
}

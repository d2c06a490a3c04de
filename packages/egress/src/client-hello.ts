import { hostName } from '@forkd/protocol';

/** The longest beginning of a TLS connection that is looked at. */
const LONGEST_HELLO = 32 << 10;
const HANDSHAKE = 22;
const CLIENT_HELLO = 1;
const SERVER_NAME = 0;
const ENCRYPTED_HELLO = 0xfe0d;

export interface Hello {
  name: string | undefined;
  /** It may be for a host that we cannot see. */
  isHidden: boolean;
}

const HIDDEN: Hello = { name: undefined, isHidden: true };

/** The name a TLS client asks for; `more`: it has not said all of it. What is not as it should be hides something. */
export function readHello(bytes: Buffer): Hello | 'more' {
  let message = Buffer.alloc(0);
  for (let at = 0; ; ) {
    if (bytes.length < at + 5) return bytes.length > LONGEST_HELLO ? HIDDEN : 'more';
    const length = bytes.readUInt16BE(at + 3);
    if (bytes[at] !== HANDSHAKE || bytes[at + 1] !== 3 || length === 0 || length > 16_384) return HIDDEN;
    const fragment = bytes.subarray(at + 5, at + 5 + length);
    message = Buffer.concat([message, fragment]);
    if (message.length >= 4) {
      const whole = 4 + message.readUIntBE(1, 3);
      if (message[0] !== CLIENT_HELLO || whole > LONGEST_HELLO) return HIDDEN;
      if (message.length >= whole) return readBody(message.subarray(4, whole));
    }
    // A client that sends its hello byte by byte, each in a record, gets no further than others.
    if (fragment.length < length) return bytes.length > 2 * LONGEST_HELLO ? HIDDEN : 'more';
    at += 5 + length;
  }
}

function readBody(body: Buffer): Hello {
  const reader = new Reader(body);
  reader.skip(2 + 32);
  reader.vector(1);
  reader.vector(2);
  reader.vector(1);
  const extensions = new Reader(reader.vector(2));
  let server: Buffer | undefined;
  let isHidden = !reader.isDone;
  while (!extensions.isDone) {
    const type = extensions.number(2);
    const data = extensions.vector(2);
    if (type === ENCRYPTED_HELLO || (type === SERVER_NAME && server)) isHidden = true;
    if (type === SERVER_NAME) server = data;
  }
  if (isHidden || reader.isBroken || extensions.isBroken) return HIDDEN;
  if (!server) return { name: undefined, isHidden: false };
  const names = new Reader(server);
  const list = new Reader(names.vector(2));
  const type = list.number(1);
  const name = hostName(list.vector(2).toString('latin1'));
  const isWhole = list.isDone && names.isDone && !list.isBroken && !names.isBroken;
  return isWhole && type === 0 && name !== undefined ? { name, isHidden: false } : HIDDEN;
}

/** Reads past the end as zeros, and remembers that it did. */
class Reader {
  #at = 0;
  isBroken = false;

  constructor(private readonly bytes: Buffer) {}

  get isDone(): boolean {
    return this.isBroken || this.#at === this.bytes.length;
  }

  skip(length: number): Buffer {
    const part = this.bytes.subarray(this.#at, this.#at + length);
    if (part.length < length) this.isBroken = true;
    this.#at += part.length;
    return part;
  }

  number(length: number): number {
    const part = this.skip(length);
    return this.isBroken ? 0 : part.readUIntBE(0, length);
  }

  /** With its length before it. */
  vector(length: number): Buffer {
    return this.skip(this.number(length));
  }
}

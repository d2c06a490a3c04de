/** The little of ASN.1 that a certificate needs, as bytes. */
export function der(tag: number, ...content: Buffer[]): Buffer {
  const body = Buffer.concat(content);
  const hex = body.length.toString(16);
  const long = Buffer.from(hex.padStart(hex.length + (hex.length % 2), '0'), 'hex');
  const length =
    body.length < 128 ? Buffer.from([body.length]) : Buffer.concat([Buffer.from([0x80 | long.length]), long]);
  return Buffer.concat([Buffer.from([tag]), length, body]);
}

export const sequence = (...parts: Buffer[]): Buffer => der(0x30, ...parts);
export const octets = (bytes: Buffer): Buffer => der(0x04, bytes);
export const bits = (bytes: Buffer, unused = 0): Buffer => der(0x03, Buffer.from([unused]), bytes);
export const yes = der(0x01, Buffer.from([0xff]));
/** `[number]` around what is in it. */
export const tagged = (number: number, ...parts: Buffer[]): Buffer => der(0xa0 | number, ...parts);

/** A positive one. */
export function integer(bytes: Buffer): Buffer {
  return der(0x02, bytes[0]! & 0x80 ? Buffer.concat([Buffer.from([0]), bytes]) : bytes);
}

export function oid(text: string): Buffer {
  const [first = 0, second = 0, ...rest] = text.split('.').map(Number);
  const bytes = [first * 40 + second, ...rest].flatMap((value) => {
    const digits = [value & 127];
    for (let left = value >> 7; left > 0; left >>= 7) digits.unshift(0x80 | (left & 127));
    return digits;
  });
  return der(0x06, Buffer.from(bytes));
}

/** As generalised time only where the short form does not reach. */
export function time(at: Date): Buffer {
  const digits = at.toISOString().replace(/[-:T]|\.\d+/g, '');
  return at.getUTCFullYear() < 2050 ? der(0x17, Buffer.from(digits.slice(2))) : der(0x18, Buffer.from(digits));
}

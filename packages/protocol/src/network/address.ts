import { isIPv4, isIPv6 } from 'node:net';

/** An IP address as a number, in the one form it is compared in. */
export interface Address {
  family: 4 | 6;
  value: bigint;
}

/** All addresses whose first `bits` bits are those of `base`. */
export interface Range {
  base: Address;
  bits: number;
}

/** Forms of IPv6 in which an IPv4 address is written: what is allowed or not is that one. `at`: where its last bit is. */
const EMBEDDED: { range: Range; at: bigint }[] = [
  { range: six('::ffff:0:0', 96), at: 0n },
  { range: six('64:ff9b::', 96), at: 0n },
  { range: six('2002::', 16), at: 80n },
];

/** Dotted decimal or IPv6 text, nothing else: no octal, no hexadecimal, no short forms. A zone says only which way. */
export function parseAddress(text: string): Address | undefined {
  if (isIPv4(text)) return { family: 4, value: four(text) };
  const [plain = '', ...zone] = text.split('%');
  if (!isIPv6(plain) || zone.length > 1) return undefined;
  return { family: 6, value: sixValue(plain) };
}

/** As `parseAddress`, and an IPv4 address in the clothes of IPv6 is that IPv4 address. */
export function normalAddress(text: string): Address | undefined {
  const address = parseAddress(text);
  if (!address || address.family === 4) return address;
  const { value } = address;
  // `::1.2.3.4`, but neither `::` nor `::1`.
  if (value >> 32n === 0n && value > 1n) return { family: 4, value };
  const form = EMBEDDED.find(({ range }) => isWithin(address, range));
  return form ? { family: 4, value: (value >> form.at) & 0xffff_ffffn } : address;
}

export function addressText({ family, value }: Address): string {
  if (family === 4) return [24n, 16n, 8n, 0n].map((shift) => (value >> shift) & 255n).join('.');
  const groups = Array.from({ length: 8 }, (_, index) => ((value >> BigInt(112 - index * 16)) & 0xffffn).toString(16));
  // The longest run of zeros is left out, as everybody writes it.
  const run = groups
    .map((_, start) => ({ start, length: groups.slice(start).findIndex((group) => group !== '0') }))
    .map(({ start, length }) => ({ start, length: length < 0 ? 8 - start : length }))
    .reduce((best, next) => (next.length > best.length ? next : best));
  if (run.length < 2) return groups.join(':');
  return `${groups.slice(0, run.start).join(':')}::${groups.slice(run.start + run.length).join(':')}`;
}

export function isWithin(address: Address, { base, bits }: Range): boolean {
  if (address.family !== base.family) return false;
  const rest = BigInt(widthOf(base) - bits);
  return address.value >> rest === base.value >> rest;
}

/** Whether all of `inner` is in `outer`. */
export function isInside(inner: Range, outer: Range): boolean {
  return inner.bits >= outer.bits && isWithin(inner.base, outer);
}

export function overlap(one: Range, other: Range): boolean {
  return isInside(one, other) || isInside(other, one);
}

export function widthOf({ family }: Address): number {
  return family === 4 ? 32 : 128;
}

/** For tables of ranges in our own code. */
export function range(text: string): Range {
  const [address = '', bits] = text.split('/');
  const base = parseAddress(address)!;
  return { base, bits: bits === undefined ? widthOf(base) : Number(bits) };
}

function four(text: string): bigint {
  return text.split('.').reduce((value, part) => (value << 8n) | BigInt(part), 0n);
}

function sixValue(text: string): bigint {
  const last = text.slice(text.lastIndexOf(':') + 1);
  const tail = four(last.includes('.') ? last : '0.0.0.0');
  const dotted = last.includes('.') ? `${(tail >> 16n).toString(16)}:${(tail & 0xffffn).toString(16)}` : last;
  const [head = '', rest] = (text.slice(0, text.length - last.length) + dotted).split('::');
  const groups = (part: string): string[] => (part === '' ? [] : part.split(':'));
  const [front, back] = [groups(head), groups(rest ?? '')];
  const zeros = Array<string>(8 - front.length - back.length).fill('0');
  return [...front, ...zeros, ...back].reduce((value, group) => (value << 16n) | BigInt(`0x${group}`), 0n);
}

function six(text: string, bits: number): Range {
  return { base: { family: 6, value: sixValue(text) }, bits };
}

import { type Address, addressText, normalAddress, parseAddress, type Range, widthOf } from './address.js';

/** What an entry of an allow or deny list names; without a port it is about all ports. */
export type Entry = { text: string; port: number | undefined } & (
  | { kind: 'range'; range: Range }
  | { kind: 'name'; name: string; isWildcard: boolean }
);

export const LONGEST_ENTRY = 300;

/**
 * `ADDRESS`, `ADDRESS/BITS`, `NAME` or `*.NAME`, each with `:PORT` after it or without; an IPv6 address that has a port is in
 * brackets. Gives what is wrong as text.
 */
export function parseEntry(given: string): Entry | string {
  if (given.length > LONGEST_ENTRY) return `longer than ${LONGEST_ENTRY} characters`;
  const bracketed = /^\[([^[\]]*)\](\/[^:]*)?(?::(.*))?$/.exec(given);
  // More than one colon outside of brackets: IPv6 without a port.
  const isBare = !bracketed && given.indexOf(':') !== given.lastIndexOf(':');
  const plain = isBare ? /^(.*)$/.exec(given)! : /^([^:]*)(?::(.*))?$/.exec(given)!;
  const subject = bracketed ? bracketed[1]! + (bracketed[2] ?? '') : plain[1]!;
  const portText = bracketed ? bracketed[3] : plain[2];
  const port = portText === undefined ? undefined : parsePort(portText);
  if (port === null) return `${quoted(portText!)} is no port: give 1 to 65535`;
  const isAddress = bracketed !== null || isBare || /^[\d.]+(\/|$)/.test(subject) || subject.includes('/');
  return isAddress ? rangeEntry(subject, port) : nameEntry(subject, port);
}

function rangeEntry(subject: string, port: number | undefined): Entry | string {
  const [addressPart = '', bitsPart, ...more] = subject.split('/');
  const base = addressPart.includes('%') ? undefined : parseAddress(addressPart);
  if (!base) return `${quoted(addressPart)} is no address: write 192.0.2.1 or 2001:db8::1`;
  const bits = bitsPart === undefined ? widthOf(base) : /^\d{1,3}$/.test(bitsPart) ? Number(bitsPart) : -1;
  if (more.length > 0 || bits < 0 || bits > widthOf(base))
    return `${quoted(subject)} has no length of 0 to ${widthOf(base)} after its "/"`;
  const rest = BigInt(widthOf(base) - bits);
  const first: Address = { family: base.family, value: (base.value >> rest) << rest };
  if (first.value !== base.value)
    return `${quoted(subject)} has bits after its length: write ${addressText(first)}/${bits}`;
  const normal = normalAddress(addressText(base));
  if (normal?.family !== base.family)
    return `${quoted(addressPart)} is another way to write ${addressText(normal!)}: write that`;
  const text = `${addressText(base)}${bits === widthOf(base) ? '' : `/${bits}`}`;
  const inBrackets = base.family === 6 && port !== undefined ? text.replace(/^[^/]+/, '[$&]') : text;
  return { kind: 'range', range: { base, bits }, port, text: withPort(inBrackets, port) };
}

function nameEntry(subject: string, port: number | undefined): Entry | string {
  const isWildcard = subject.startsWith('*.');
  const name = hostName(isWildcard ? subject.slice(2) : subject);
  if (name === undefined)
    return `${quoted(subject)} is no host name: write example.com or *.example.com, international names as xn--…`;
  return { kind: 'name', name, isWildcard, port, text: withPort(`${isWildcard ? '*.' : ''}${name}`, port) };
}

/** In lower case and without a dot at its end; `undefined` for what is none, or what some would read as an address. */
export function hostName(text: string): string | undefined {
  const name = (text.endsWith('.') ? text.slice(0, -1) : text).toLowerCase();
  if (
    name.length > 253 ||
    !/^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*$/.test(name)
  )
    return undefined;
  return /(^|\.)(\d+|0x[0-9a-f]*)$/.test(name) ? undefined : name;
}

function parsePort(text: string): number | null {
  const port = /^[1-9]\d{0,4}$/.test(text) ? Number(text) : 0;
  return port >= 1 && port <= 65_535 ? port : null;
}

function withPort(text: string, port: number | undefined): string {
  return port === undefined ? text : `${text}:${port}`;
}

function quoted(text: string): string {
  return JSON.stringify(text.slice(0, 80));
}

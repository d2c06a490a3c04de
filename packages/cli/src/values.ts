import { SandboxId, Tag } from '@forkd/protocol';
import { usage } from './usage.js';

export function text(value: string): string {
  return value;
}

export function tag(value: string): string {
  if (Tag.safeParse(value).success) return value;
  throw usage(`not a tag: ${quoted(value)}`, 'A tag is 1 to 64 letters, digits, "-" or "_".');
}

export function sandboxId(value: string): string {
  if (SandboxId.safeParse(value).success) return value;
  throw usage(`not a sandbox id: ${quoted(value)}`, 'Ids look like sb-0123456789abcdefghij: see `forkd ls`.');
}

export function count(least: number, most: number): (value: string) => number {
  return (value) => {
    const number = /^\d{1,9}$/.test(value) ? Number(value) : Number.NaN;
    if (number >= least && number <= most) return number;
    throw usage(`not a number from ${least} to ${most}: ${quoted(value)}`);
  };
}

/** A number that need not be whole. */
export function decimal(least: number, most: number): (value: string) => number {
  return (value) => {
    const number = /^\d{1,6}(\.\d{1,3})?$/.test(value) ? Number(value) : Number.NaN;
    if (number >= least && number <= most) return number;
    throw usage(`not a number from ${least} to ${most}: ${quoted(value)}`);
  };
}

export function oneOf<const T extends string>(...known: T[]): (value: string) => T {
  return (value) => {
    if ((known as string[]).includes(value)) return value as T;
    throw usage(`${quoted(value)} is none of ${known.join(', ')}`);
  };
}

/** `NAME=VALUE` */
export function pair(value: string): [string, string] {
  const at = value.indexOf('=');
  if (at > 0) return [value.slice(0, at), value.slice(at + 1)];
  throw usage(`not NAME=VALUE: ${quoted(value)}`);
}

export function quoted(value: string): string {
  return JSON.stringify(value.slice(0, 100));
}

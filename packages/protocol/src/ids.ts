import { randomBytes } from 'node:crypto';
import { z } from 'zod';
import { ForkdError } from './errors.js';

const ALPHABET = '0123456789abcdefghijklmnopqrstuvwxyz';

/** Names a user chooses: they become directory names, so nothing but these characters ever passes. */
export const Tag = z.string().regex(/^[A-Za-z0-9_-]{1,64}$/, 'a tag is 1 to 64 letters, digits, "-" or "_"');

/** For values that do not come through a schema already. */
export function parseTag(value: unknown): string {
  const tag = Tag.safeParse(value);
  if (tag.success) return tag.data;
  throw new ForkdError('invalid_request', `not a tag: ${String(JSON.stringify(value)).slice(0, 100)}`, {
    hint: 'A tag is 1 to 64 letters, digits, "-" or "_".',
  });
}

export const SandboxId = z.string().regex(/^sb-[0-9a-z]{20}$/, 'not a sandbox id');

/** Unguessable: 20 characters of base 36 are 103 bits. */
export function newSandboxId(): string {
  // 252 is the largest multiple of 36 below 256: bytes above it are dropped so that every character is equally likely.
  let id = '';
  while (id.length < 20)
    for (const byte of randomBytes(32)) if (byte < 252 && id.length < 20) id += ALPHABET[byte % 36];
  return `sb-${id}`;
}

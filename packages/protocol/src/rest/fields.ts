import { z } from 'zod';
import { SandboxId, Tag } from '../ids.js';

/** Text that may go to a guest or a log: bounded, without NUL, and nothing that UTF-8 cannot say. */
export function text(longest: number) {
  return z
    .string()
    .max(longest)
    .refine((value) => !value.includes('\0'), 'must not contain a NUL character')
    .refine((value) => !/\p{Surrogate}/u.test(value), 'must not contain half a character (a lone surrogate)');
}

export function whole(least: number, most: number) {
  return z.number().int().min(least).max(most);
}

export const UnixSeconds = z.number().int().nonnegative();

export const Environment = z
  .record(z.string().regex(/^[A-Za-z_][A-Za-z0-9_]{0,255}$/, 'not the name of a variable'), text(32 * 1024))
  .refine((env) => Object.keys(env).length <= 256, 'more than 256 variables');

/** Labels a user puts on a sandbox, and can filter by. */
export const Metadata = z
  .record(z.string().regex(/^[A-Za-z0-9._/-]{1,64}$/, 'not a label'), text(1024))
  .refine((labels) => Object.keys(labels).length <= 64, 'more than 64 labels');

export const TagParams = z.strictObject({ tag: Tag });
export const IdParams = z.strictObject({ id: SandboxId });

/** A query value is text; these two spellings are what forkd's clients send. */
export const Flag = z.enum(['true', 'false']).transform((value) => value === 'true');

export const Page = {
  /** Where the page before ended: its `X-Next-Token`. */
  page_token: text(200).optional(),
  limit: z.coerce.number().int().min(1).max(1000).optional(),
};

export const ErrorBody = z.object({
  error: z.string(),
  code: z.string(),
  hint: z.string(),
  request_id: z.string(),
  details: z.record(z.string(), z.unknown()).optional(),
});
export type ErrorBody = z.infer<typeof ErrorBody>;

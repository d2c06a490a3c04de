import { z } from 'zod';
import { Flag, text } from './fields.js';

const GuestPath = text(4096).min(1, 'a path inside the sandbox');
const Who = { user: text(64).optional() };

export const FileQuery = z.strictObject({ path: GuestPath, ...Who });
export const ListFilesQuery = z.strictObject({
  path: GuestPath,
  depth: z.coerce.number().int().min(1).max(32).default(1),
  ...Who,
});
export const WatchFilesQuery = z.strictObject({ path: GuestPath, recursive: Flag.optional(), ...Who });
export const MoveFile = z.strictObject({ from: GuestPath, to: GuestPath, ...Who });

export const FileInfo = z.object({
  name: z.string(),
  path: z.string(),
  type: z.string(),
  size: z.number(),
  mode: z.number().int(),
  permissions: z.string(),
  owner: z.string(),
  group: z.string(),
  modified_at: z.string().nullable(),
  symlink_target: z.string().nullable(),
});
export type FileInfo = z.infer<typeof FileInfo>;

/** Data of a server-sent event of a watch; its name is the kind: create, write, remove, rename, chmod. */
export const FileEvent = z.object({ name: z.string(), entry: FileInfo.nullable() });
export type FileEvent = z.infer<typeof FileEvent>;

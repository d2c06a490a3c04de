import { z } from 'zod';
import { SandboxId, Tag } from '../ids.js';

/** Ids of sandboxes or tags of snapshots; what goes for both is a sandbox. */
const Side = z.union([SandboxId, Tag]);
export const DiffQuery = z.strictObject({ a: Side, b: Side });

const File = z.object({ path: z.string(), type: z.enum(['file', 'dir', 'other']), size: z.number() });
const Process = z.object({ pid: z.number().int(), command: z.string() });

/** What `b` has that `a` has not, and the other way round. Lists are cut at 1000 entries, and then `truncated`. */
export const Diff = z.object({
  a: Side,
  b: Side,
  files: z.object({
    added: z.array(File),
    changed: z.array(File.extend({ size_before: z.number() })),
    removed: z.array(File),
    truncated: z.boolean(),
  }),
  processes: z.object({ added: z.array(Process), removed: z.array(Process), truncated: z.boolean() }),
  memory: z.object({ page_bytes: z.literal(4096), pages: z.number().int(), pages_changed: z.number().int() }),
});
export type Diff = z.infer<typeof Diff>;

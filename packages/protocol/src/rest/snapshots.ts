import { z } from 'zod';
import { SandboxId, Tag } from '../ids.js';
import { Flag, text, UnixSeconds, whole } from './fields.js';

export const SnapshotStatus = z.enum(['writing', 'ready', 'failed']);
export type SnapshotStatus = z.infer<typeof SnapshotStatus>;

/** Names of tokens, or everybody. */
export const SharedWith = z.union([z.literal('all'), z.array(Tag).max(100)]);
export type SharedWith = z.infer<typeof SharedWith>;

/** forkd's fields; what forkd does not have comes after them. */
export const SnapshotInfo = z.object({
  tag: Tag,
  dir: z.string(),
  created_at_unix: UnixSeconds,
  branched_from: z.string().optional(),
  pause_ms: z.number().optional(),
  diff_ms: z.number().optional(),
  diff_physical_bytes: z.number().optional(),
  diff_logical_bytes: z.number().optional(),
  warning: z.string().optional(),
  status: SnapshotStatus,
  bootable: z.boolean(),
  owner: z.string().optional(),
  recipe: z.string().optional(),
  engine: z.string().optional(),
  accel: z.string().optional(),
  vcpus: z.number().int().optional(),
  memory_mib: z.number().int().optional(),
  /** From then on it may be removed. */
  expires_at_unix: UnixSeconds.optional(),
  pinned: z.boolean().optional(),
  /** What `pause_ms` was made of. */
  pause_phases_ms: z.record(z.string(), z.number()).optional(),
  /** Who else may read it and spawn from it; told to its owner and to admins only. */
  shared_with: SharedWith.optional(),
});
export type SnapshotInfo = z.infer<typeof SnapshotInfo>;

export const SnapshotInfoDetail = z.object({
  tag: Tag,
  dir: z.string(),
  created_at_unix: UnixSeconds.optional(),
  memory_logical_bytes: z.number().int(),
  memory_physical_bytes: z.number().int(),
  vmstate_bytes: z.number().int(),
  parent_tag: Tag.optional(),
  parent_content_hash: z.string().optional(),
  chain_depth: z.number().int(),
  dependents: z.array(Tag),
  ancestors: z.array(Tag),
  sandboxes: z.array(SandboxId),
});
export type SnapshotInfoDetail = z.infer<typeof SnapshotInfoDetail>;

export const RecipeInfo = z.object({
  name: Tag,
  description: z.string(),
  memory_mib: z.number().int(),
  vcpus: z.number().int(),
  language: z.string().nullable(),
});
export type RecipeInfo = z.infer<typeof RecipeInfo>;

const HostPath = text(4096).regex(/^\//, 'an absolute path on the host');

/** Either a recipe, or forkd's kernel and rootfs (paths on the host: for admins only). */
export const CreateSnapshot = z
  .strictObject({
    tag: Tag,
    recipe: text(64).optional(),
    memory_mib: whole(64, 65_536).optional(),
    vcpus: whole(1, 8).optional(),
    kernel: HostPath.optional(),
    rootfs: HostPath.optional(),
    rw: z.boolean().default(false),
    tap: text(15).nullish(),
    boot_wait_secs: whole(0, 60).default(10),
    /** `false`: answers 202 at once; the snapshot is `writing` until it is `ready`. */
    wait: z.boolean().default(true),
  })
  .refine(
    ({ recipe, kernel, rootfs }) =>
      recipe === undefined
        ? kernel !== undefined && rootfs !== undefined
        : kernel === undefined && rootfs === undefined,
    {
      message: 'give either recipe, or kernel and rootfs',
    },
  );
export type CreateSnapshot = z.infer<typeof CreateSnapshot>;

export const DeleteSnapshotQuery = z
  .strictObject({ cascade: Flag.optional(), force: Flag.optional() })
  .refine(({ cascade, force }) => !(cascade && force), 'cascade and force exclude each other');

export const ChangeSnapshot = z.strictObject({
  /** From now on; `null`: it is kept. */
  ttl_secs: whole(1, 31_536_000).nullable().optional(),
  /** Only who names it removes it. */
  pinned: z.boolean().optional(),
});
export type ChangeSnapshot = z.infer<typeof ChangeSnapshot>;

/** Replaces whoever it was shared with; an empty list takes it back. */
export const ShareSnapshot = z.strictObject({ with: SharedWith });

export const GcRequest = z.strictObject({ dry_run: z.boolean().default(false) });

/** What was removed, or would be. */
export const GcReport = z.object({
  dry_run: z.boolean(),
  removed: z.array(z.object({ tag: Tag, owner: z.string(), why: z.string(), bytes: z.number() })),
  bytes: z.number(),
});
export type GcReport = z.infer<typeof GcReport>;

export const CompactSnapshot = z.strictObject({ to: Tag });

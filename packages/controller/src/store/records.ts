import {
  EgressRules,
  Limits,
  NetworkPolicy,
  SandboxId,
  SandboxState,
  SnapshotStatus,
  Tag,
  WorkspaceStatus,
} from '@forkd/protocol';
import { z } from 'zod';

const Json = z.string().transform((text) => JSON.parse(text) as unknown);

/**
 * How much may exist at one time of all that comes from one sandbox by forking. It is kept in the record of each of its
 * sandboxes and in its branches, and nobody on the way can widen it.
 */
export const Budget = z.object({
  /** The sandbox it was given to; that has level 0, its children have 1. */
  line: SandboxId,
  level: z.number().int(),
  count: z.number().int().nullable(),
  depth: z.number().int().nullable(),
  bytes: z.number().int().nullable(),
});
export type Budget = z.infer<typeof Budget>;

/** A row of `sandboxes`; also how it is written. */
export const SandboxRecord = z.object({
  id: SandboxId,
  snapshot_tag: Tag,
  owner: z.string(),
  state: SandboxState,
  /** Its VM's directory, and its cgroup. A VM that takes the place of another one has its own from the start. */
  place: SandboxId,
  /** Both are null until the VMM exists; together they name it for ever. */
  pid: z.number().int().nullable(),
  start_time: z.number().int().nullable(),
  created_at: z.number().int(),
  expires_at: z.number().int().nullable(),
  ended_at: z.number().int().nullable(),
  exit_reason: z.string().nullable(),
  /** The `Idempotency-Key` of the request that made it. */
  request_key: z.string().nullable(),
  /** The id it had before it was promoted. */
  promoted_from: SandboxId.nullable(),
  metadata: Json.pipe(z.record(z.string(), z.string())),
  /** Given at its birth on top of the snapshot's; its branches go on with it. */
  env: Json.pipe(z.record(z.string(), z.string())),
  branch_count: z.number().int(),
  /** The tag of the most recent one. */
  last_branch: Tag.nullable(),
  memory_limit_mib: z.number().int().nullable(),
  limits: Json.pipe(Limits),
  budget: Json.pipe(Budget).nullable(),
  /** 1: its processes may ask for branches. */
  guest_branch: z.number().int(),
  /** Where its connections may go. */
  policy: Json.pipe(NetworkPolicy),
  vcpus: z.number().int(),
  memory_mib: z.number().int(),
  /** What its writable disk may take. */
  disk_mib: z.number().int(),
});
export type SandboxRecord = z.infer<typeof SandboxRecord>;

/** A named sandbox that can be suspended: then it is a snapshot. */
export const WorkspaceRecord = z.object({
  name: Tag,
  owner: z.string(),
  source_tag: Tag,
  state_tag: Tag.nullable(),
  /** A saved state that is not its state yet, or not any more: after a crash it is removed. */
  spare_tag: Tag.nullable(),
  status: WorkspaceStatus,
  /** Unless it is running, a sandbox that is about to be its own, or not any more: after a crash it is ended. */
  sandbox_id: SandboxId.nullable(),
  memory_limit_mib: z.number().int().nullable(),
  limits: Json.pipe(Limits),
  env: Json.pipe(z.record(z.string(), z.string())),
  created_at: z.number().int(),
  last_active: z.number().int(),
});
export type WorkspaceRecord = z.infer<typeof WorkspaceRecord>;

export const SnapshotRecord = z.object({
  tag: Tag,
  owner: z.string(),
  status: SnapshotStatus,
  created_at: z.number().int(),
  recipe: z.string().nullable(),
  warning: z.string().nullable(),
  /** Of a branch: the line whose budget it takes from. */
  line: SandboxId.nullish(),
  /** What it takes on disk that no other snapshot does. */
  bytes: z.number().int().nullish(),
  expires_at: z.number().int().nullish(),
  /** 1: never removed unless somebody asks for it by name. */
  pinned: z.number().int().nullish(),
  /** Owners who may read it and spawn from it too; `*`: all. */
  shared_with: Json.pipe(z.array(z.string())).nullish(),
});
export type SnapshotRecord = z.infer<typeof SnapshotRecord>;

/** Headers that are set for a sandbox, or for the children of a snapshot (`tag:TAG`): secrets. */
export const RulesRecord = z.object({ subject: z.string(), owner: z.string(), rules: Json.pipe(EgressRules) });
export type RulesRecord = z.infer<typeof RulesRecord>;

/** What a request with an `Idempotency-Key` was answered, so that its repetition gets the same. */
export const KeptAnswer = z.object({
  key: z.string(),
  owner: z.string(),
  request_hash: z.string(),
  status: z.number().int().nullable(),
  body: z.string().nullable(),
  created_at: z.number().int(),
});
export type KeptAnswer = z.infer<typeof KeptAnswer>;

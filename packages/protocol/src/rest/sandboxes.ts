import { z } from 'zod';
import { SandboxId, Tag } from '../ids.js';
import { Environment, ErrorBody, Metadata, Page, text, UnixSeconds, whole } from './fields.js';
import { LimitFields } from './limits.js';
import { NetworkPolicy, NetworkRequest } from './network.js';

export const SandboxState = z.enum(['starting', 'running', 'paused', 'stopping', 'exited']);
export type SandboxState = z.infer<typeof SandboxState>;

/** Where forkd's agent listened. It is the same in every guest and means nothing any more, but clients print it. */
export const GUEST_ADDR = '10.42.0.2:8888';

/** How much may exist at one time of what comes from a sandbox by forking, over all generations. */
export const MaxForks = z.strictObject({
  /** Sandboxes beside the first one. */
  count: whole(0, 1_000_000).optional(),
  /** Generations below the first one. */
  depth: whole(0, 1_000).optional(),
  /** On disk, of all branches. */
  bytes: whole(0, Number.MAX_SAFE_INTEGER).optional(),
});
export type MaxForks = z.infer<typeof MaxForks>;

/** Whether processes in the sandbox may branch and fork it (`forkd-guest`). Without it: as in the sandbox the snapshot was taken of. */
export const GuestBranch = z.boolean().optional();

export const SpawnRequest = z.strictObject({
  snapshot_tag: Tag,
  n: whole(1, 1000).default(1),
  /** Every child always has a namespace of its own; forkd's other switches need nothing special here either. */
  per_child_netns: z.boolean().default(false),
  prewarm: z.boolean().default(false),
  live_fork: z.boolean().default(false),
  hugepages: z.boolean().default(false),
  memory_limit_mib: whole(16, 1 << 20).nullish(),
  ...LimitFields,
  ttl_secs: whole(1, 31_536_000).optional(),
  metadata: Metadata.default({}),
  env: Environment.default({}),
  max_forks: MaxForks.optional(),
  guest_branch: GuestBranch,
  /** Where its connections may go; without it as the snapshot says, or the daemon. */
  network: NetworkRequest.optional(),
});
export type SpawnRequest = z.infer<typeof SpawnRequest>;

export const SandboxInfo = z.object({
  id: SandboxId,
  snapshot_tag: Tag,
  netns: z.string().nullable(),
  guest_addr: z.string(),
  created_at_unix: UnixSeconds,
  pid: z.number().int().nullable(),
  memory_limit_mib: z.number().int().nullable(),
  ...LimitFields,
  has_branched: z.boolean(),
  last_branch_memory_path: z.string().nullable(),
  branch_count: z.number().int(),
  state: SandboxState,
  owner: z.string().optional(),
  metadata: z.record(z.string(), z.string()),
  expires_at_unix: UnixSeconds.nullable(),
  vcpus: z.number().int(),
  memory_mib: z.number().int(),
  /** What its writable disk may take. */
  disk_mib: z.number().int().optional(),
  network: NetworkPolicy.optional(),
  /** Of the line it belongs to. */
  max_forks: MaxForks.optional(),
  guest_branch: z.boolean().optional(),
  /** The id it had before it took that of the sandbox it was forked from. */
  promoted_from: SandboxId.optional(),
  /** Why it ended, while it is remembered. */
  exit_reason: z.string().nullable(),
});
export type SandboxInfo = z.infer<typeof SandboxInfo>;

/** One entry per child asked for, in order: some may fail while others are fine. */
export const SpawnResults = z.object({
  results: z.array(
    z.union([z.object({ sandbox: SandboxInfo }), z.object({ error: ErrorBody.omit({ request_id: true }) })]),
  ),
});

/** Without `state`, what has not ended. */
export const ListSandboxesQuery = z.strictObject({
  ...Page,
  state: SandboxState.optional(),
  snapshot_tag: Tag.optional(),
  /** `key=value`; several are joined by commas and all must hold. */
  metadata: text(4096).optional(),
});

export const ChangeSandbox = z.strictObject({
  /** From now on; `null`: it never ends by itself. */
  ttl_secs: whole(1, 31_536_000).nullable().optional(),
  /** Replaces all labels. */
  metadata: Metadata.optional(),
});
export type ChangeSandbox = z.infer<typeof ChangeSandbox>;

/** How a stream ends that broke after it had begun. */
const StreamError = ErrorBody.omit({ request_id: true }).extend({ type: z.literal('error') });

export const PtyQuery = z.strictObject({
  cols: z.coerce.number().int().min(1).max(1000).default(80),
  rows: z.coerce.number().int().min(1).max(1000).default(24),
  /** A line for the shell; without it an interactive shell. */
  command: text(64 * 1024).optional(),
  cwd: text(4096).optional(),
  user: text(64).optional(),
  term: z
    .string()
    .regex(/^[A-Za-z0-9._+-]{1,64}$/, 'not the name of a terminal')
    .default('xterm-256color'),
});

/** Text frames of a terminal. */
export const PtyInput = z.strictObject({
  type: z.literal('resize'),
  cols: whole(1, 1000),
  rows: whole(1, 1000),
});
export type PtyInput = z.infer<typeof PtyInput>;
export const PtyOutput = z.discriminatedUnion('type', [
  z.object({ type: z.literal('exit'), exit_code: z.number().int(), signal: z.string().nullable() }),
  StreamError,
]);
export type PtyOutput = z.infer<typeof PtyOutput>;

/** A day: longer work belongs into a process that is started and looked after. */
const MAX_TIMEOUT_SECS = 86_400;

const Argument = text(128 * 1024);

export const ExecRequest = z.strictObject({
  args: z.tuple([Argument], Argument).refine((args) => args.length <= 4096, 'more than 4096 arguments'),
  timeout_secs: whole(1, MAX_TIMEOUT_SECS).default(30),
  cwd: text(4096).optional(),
  env: Environment.default({}),
  user: text(64).optional(),
  stdin: text(8 << 20).optional(),
});
export type ExecRequest = z.infer<typeof ExecRequest>;

export const ExecResponse = z.object({
  stdout: z.string(),
  stderr: z.string(),
  exit_code: z.number().int(),
  signal: z.string().nullable(),
  timed_out: z.boolean(),
  truncated: z.boolean(),
});
export type ExecResponse = z.infer<typeof ExecResponse>;

/** One of a streamed exec: output as base64 in the order it came, then one exit or one error. */
export const ExecEvent = z.union([
  z.object({ type: z.enum(['stdout', 'stderr']), data: z.string() }),
  z.object({
    type: z.literal('exit'),
    exit_code: z.number().int(),
    signal: z.string().nullable(),
    timed_out: z.boolean(),
  }),
  StreamError,
]);
export type ExecEvent = z.infer<typeof ExecEvent>;

export const EvalRequest = z.strictObject({
  code: text(1 << 20),
  /** The language the snapshot was warmed in, unless said otherwise. */
  language: z.enum(['python', 'node']).optional(),
  timeout_secs: whole(1, MAX_TIMEOUT_SECS).default(30),
});
export type EvalRequest = z.infer<typeof EvalRequest>;

export const EvalResponse = z.object({
  result: z.string().nullable(),
  error: z.string().nullable(),
  exit_code: z.number().int(),
  stdout: z.string(),
  stderr: z.string(),
  mime: z.record(z.string(), z.unknown()),
});
export type EvalResponse = z.infer<typeof EvalResponse>;

export const PingResponse = z.object({
  pong: z.literal(true),
  pid: z.number().int(),
  agent_lang: z.string(),
  warmup_ready: z.boolean(),
  protocol: z.number().int(),
  uptime_ms: z.number(),
});
export type PingResponse = z.infer<typeof PingResponse>;

export const BranchRequest = z.strictObject({
  tag: Tag.optional(),
  mode: z.enum(['full', 'diff', 'live']).optional(),
  diff: z.boolean().default(false),
  live: z.boolean().default(false),
  measure_diff: z.boolean().default(false),
  wait: z.boolean().default(true),
  parent_tag: Tag.optional(),
  /** After this time it may be removed. */
  ttl_secs: whole(1, 31_536_000).optional(),
});
export type BranchRequest = z.infer<typeof BranchRequest>;

export const RollbackRequest = z.strictObject({ snapshot_tag: Tag });

/** Branch and spawn in one call: the children go on from where the sandbox stands. */
export const ForkRequest = z.strictObject({
  n: whole(1, 1000).default(1),
  /** Of the snapshot in between. */
  tag: Tag.optional(),
  /** Limits that are not given are those of the sandbox that is forked. */
  memory_limit_mib: whole(16, 1 << 20).nullish(),
  ...LimitFields,
  ttl_secs: whole(1, 31_536_000).optional(),
  metadata: Metadata.default({}),
  env: Environment.default({}),
  guest_branch: GuestBranch,
  /** Without it as the sandbox has it. */
  network: NetworkRequest.optional(),
});
export type ForkRequest = z.infer<typeof ForkRequest>;

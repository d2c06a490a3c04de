import { z } from 'zod';
import { SandboxId, Tag } from '../ids.js';
import { Environment, UnixSeconds, whole } from './fields.js';
import { LimitFields } from './limits.js';
import { NetworkRequest } from './network.js';
import { GuestBranch } from './sandboxes.js';

export const WorkspaceStatus = z.enum(['running', 'suspended', 'stale']);
export type WorkspaceStatus = z.infer<typeof WorkspaceStatus>;

export const WorkspaceInfo = z.object({
  id: z.string(),
  name: Tag,
  source_snapshot_tag: Tag,
  current_state_tag: Tag.optional(),
  status: WorkspaceStatus,
  live_sandbox_id: SandboxId.optional(),
  created_at_unix: UnixSeconds,
  last_active_unix: UnixSeconds,
  last_branch_memory_path: z.string().optional(),
  owner: z.string().optional(),
});
export type WorkspaceInfo = z.infer<typeof WorkspaceInfo>;

export const CreateWorkspace = z.strictObject({
  name: Tag,
  snapshot_tag: Tag,
  per_child_netns: z.boolean().default(false),
  memory_limit_mib: whole(16, 1 << 20).nullish(),
  ...LimitFields,
  env: Environment.default({}),
  guest_branch: GuestBranch,
  network: NetworkRequest.optional(),
});

export const SuspendWorkspace = z.strictObject({ diff: z.boolean().default(false) });
export const NameParams = z.strictObject({ name: Tag });

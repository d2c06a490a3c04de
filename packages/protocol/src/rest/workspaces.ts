import { z } from 'zod';
import { SandboxId, Tag } from '../ids.js';
import { UnixSeconds, whole } from './fields.js';

export const WorkspaceInfo = z.object({
  id: z.string(),
  name: Tag,
  source_snapshot_tag: Tag,
  current_state_tag: Tag.optional(),
  status: z.enum(['running', 'suspended', 'stale']),
  live_sandbox_id: SandboxId.optional(),
  created_at_unix: UnixSeconds,
  last_active_unix: UnixSeconds,
  last_branch_memory_path: z.string().optional(),
});

export const CreateWorkspace = z.strictObject({
  name: Tag,
  snapshot_tag: Tag,
  per_child_netns: z.boolean().default(false),
  memory_limit_mib: whole(16, 1 << 20).nullish(),
});

export const SuspendWorkspace = z.strictObject({ diff: z.boolean().default(false) });
export const NameParams = z.strictObject({ name: Tag });

import { z } from 'zod';
import { SandboxId, Tag } from '../ids.js';
import { text, UnixSeconds } from './fields.js';

export const EventType = z.enum([
  'created',
  'progress',
  'spawned',
  'paused',
  'resumed',
  'branched',
  'rolled_back',
  'promoted',
  'exited',
  'crashed',
  'deleted',
  'network.denied',
  'network.lost',
]);
export type EventType = z.infer<typeof EventType>;

/** The data of one server-sent event; its `id` is `seq`, its name `type`. */
export const ForkdEvent = z.object({
  seq: z.number().int(),
  type: EventType,
  at_unix_ms: z.number().int(),
  owner: z.string(),
  /** What it is about: one of these two, or both. */
  sandbox_id: SandboxId.optional(),
  snapshot_tag: Tag.optional(),
  /** For people: the step of a progress, the reason of an exit. */
  message: z.string().optional(),
});
export type ForkdEvent = z.infer<typeof ForkdEvent>;

export const EventsQuery = z.strictObject({
  /** Several are joined by commas. */
  types: text(200)
    .transform((list) => list.split(','))
    .pipe(z.array(EventType))
    .optional(),
  sandbox_id: SandboxId.optional(),
  snapshot_tag: Tag.optional(),
  /** Everything still remembered after this one; 0 for all. */
  since: z.coerce.number().int().min(0).optional(),
});

/** A flat tree: `parent` names another node of the list, or nothing. */
export const LineageNode = z.object({
  kind: z.enum(['snapshot', 'sandbox']),
  name: z.string(),
  parent: z.string().nullable(),
  state: z.string(),
  created_at_unix: UnixSeconds,
  owner: z.string(),
});
export type LineageNode = z.infer<typeof LineageNode>;

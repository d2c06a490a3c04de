import { z } from 'zod';

/** What a child is told about itself before anyone may use it. */
export interface Identity {
  id: string;
  parent: string;
  /** This child is number `index` of `count`. */
  index: number;
  count: number;
  time_unix_ns: string;
  /** Base64 of 64 random bytes. */
  entropy: string;
  hostname: string;
  env?: Readonly<Record<string, string>>;
  /** Whether its processes may ask for branches. */
  guest_branch?: boolean;
  /** It has just been made: who waited for a branch in it is told to be a child. */
  born?: boolean;
}

export const Acknowledged = z.object({
  id: z.string(),
  hooks: z.array(z.object({ name: z.string(), exit_code: z.number().int() })),
  kernels: z.array(z.string()),
  took_us: z.number(),
});

export const Health = z.object({
  protocol: z.number().int(),
  version: z.string(),
  pid: z.number().int(),
  uptime_ms: z.number(),
  identity: z.string().nullable(),
  kernels: z.record(z.string(), z.enum(['absent', 'idle', 'busy'])),
});

export const Metrics = z.object({
  ts: z.number(),
  cpu_count: z.number(),
  cpu_used_pct: z.number(),
  mem_total: z.number(),
  mem_used: z.number(),
  mem_cache: z.number(),
  disk_total: z.number(),
  disk_used: z.number(),
});

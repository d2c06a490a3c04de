import { z } from 'zod';
import { whole } from './fields.js';

/** What one sandbox may take of the host, beside memory. What is not given is not limited, or by the daemon's default. */
export const LimitFields = {
  /** In cores. */
  cpu_limit: z.number().min(0.01).max(1024).optional(),
  /** Against the others where all want more than there is; 100 is what those have who say nothing. */
  cpu_weight: whole(1, 10_000).optional(),
  /** Processes and threads of its VMM. */
  pids_limit: whole(16, 1_000_000).optional(),
  /** Bytes and operations a second on the disk of the data directory. */
  read_bps_limit: whole(4096, Number.MAX_SAFE_INTEGER).optional(),
  write_bps_limit: whole(4096, Number.MAX_SAFE_INTEGER).optional(),
  read_iops_limit: whole(1, 1_000_000_000).optional(),
  write_iops_limit: whole(1, 1_000_000_000).optional(),
};

export const Limits = z.object(LimitFields);
export type Limits = z.infer<typeof Limits>;

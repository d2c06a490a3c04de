import { z } from 'zod';
import { SandboxId } from '../ids.js';

/** In a path: decimal, nothing else. */
export const Port = z
  .string()
  .regex(/^[1-9]\d{0,4}$/, 'a port is a number from 1 to 65535')
  .transform(Number)
  .refine((port) => port <= 65_535, 'a port is a number from 1 to 65535');

export const PortParams = z.strictObject({ id: SandboxId, port: Port });

/** A TCP port that something in the sandbox listens on. */
export const PortInfo = z.object({
  port: z.number().int(),
  /** Of the sandbox, such as 127.0.0.1 or ::; whichever it is, the port can be reached. */
  address: z.string(),
  pid: z.number().int().nullable(),
  process: z.string().nullable(),
});
export type PortInfo = z.infer<typeof PortInfo>;

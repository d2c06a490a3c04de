import { z } from 'zod';

/** More than these only a guest has that makes them up. */
const MOST_PORTS = 10_000;

export const Ports = z.object({
  ports: z
    .array(
      z.object({
        port: z.number().int().min(1).max(65_535),
        address: z.string().max(64),
        pid: z.number().int().nullable(),
        process: z.string().max(64).nullable(),
      }),
    )
    .max(MOST_PORTS),
});

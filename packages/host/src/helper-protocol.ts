import { z } from 'zod';

/** What the native helper may answer; native/host-helper/src/protocol.rs is the other side. */
export const HelperLine = z.union([
  z.object({
    event: z.literal('exit'),
    pid: z.number(),
    code: z.number().nullable(),
    signal: z.number().nullable(),
  }),
  z.object({ id: z.number(), ok: z.unknown() }),
  z.object({ id: z.number(), error: z.object({ message: z.string(), errno: z.string().nullable() }) }),
]);

export const Spawned = z.object({ pid: z.number(), start_time: z.number(), fds: z.record(z.string(), z.number()) });
export const Killed = z.object({ delivered: z.boolean() });
export const Cloned = z.object({ method: z.enum(['reflink', 'copy']), bytes: z.number() });
export const Captured = z
  .object({ dirty_bytes: z.number(), written_bytes: z.number(), physical_bytes: z.number() })
  .transform(({ dirty_bytes, written_bytes, physical_bytes }) => ({
    dirtyBytes: dirty_bytes,
    writtenBytes: written_bytes,
    physicalBytes: physical_bytes,
  }));
export const Compared = z.object({ pages: z.number(), changed: z.number() });
export const Injected = z.object({ bytes: z.number() });
export const Done = z.object({});

export const Network = z.object({ network: z.number() });
export const Drops = z.object({ spoofed: z.number(), udp: z.number(), other: z.number() });

export const Tsc = z.object({ khz: z.number().int().positive() });

export type RlimitName = 'nofile' | 'nproc' | 'core' | 'fsize' | 'as' | 'memlock';

export interface SpawnSpec {
  /** `{fd:NAME}` in an argument becomes the number of the inherited descriptor of that name. */
  argv: string[];
  env: Record<string, string>;
  /** File that takes stdout and stderr. */
  log: string;
  /** Unix sockets that listen before the program runs: connecting never has to be retried. */
  listen: { name: string; path: string }[];
  /** Files opened read-only for the program, named like sockets. */
  open: { name: string; path: string }[];
  /** `true`: dies with whoever started the helper. `false`: lives on, to be adopted later. */
  tied: boolean;
  rlimits: Partial<Record<RlimitName, number>>;
  /** cgroup directories (one per v1 hierarchy, or one of v2) the process joins before it runs. */
  cgroups: string[];
  oomScoreAdj?: number;
  /** The number of a network whose tap becomes its descriptor `tap`. */
  network?: number;
  jail?: JailSpec;
}

/** The range that users for VMMs are taken from, each for one that lives. */
export interface Uids {
  first: number;
  last: number;
}

/** Where the program is alone with a few files, each at its own path. */
export interface JailSpec {
  uids: Uids;
  /** Becomes the property of its user, and so does what it may write. */
  directory: string;
  read: string[];
  write: string[];
  devices: string[];
}

export interface ForkSpec {
  /** The directory of the original VMM, and of the copy: the copy's files must be there already, its sockets must not. */
  from: string;
  to: string;
  /** By socket name: what the copy reads, before the end, on a connection the original has open. */
  orders: Record<string, string>;
  tied: boolean;
  cgroups: string[];
  /** The number of a network, if the original has one: the copy gets that tap. */
  network?: number;
  /** For one whose original is jailed: the copy gets a jail of its own, with the files in its directory. */
  jail?: Uids;
}

/** What a capture found and wrote. */
export interface Captured {
  /** Pages the guest has written since it started. */
  dirtyBytes: number;
  /** Those of them that are not as they were. */
  writtenBytes: number;
  /** What the file takes on the disk. */
  physicalBytes: number;
}

export interface ProcessExit {
  code: number | null;
  signal: number | null;
}

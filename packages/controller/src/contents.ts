import { createHash } from 'node:crypto';
import type { FileInfo, GuestClient } from '@forkd/guest';
import { asForkdError } from '@forkd/protocol';

/** Views of the kernel, and what no reboot keeps: not files of anybody. */
const NOT_FILES = new Set(['/proc', '/sys', '/dev', '/run']);
/** What every child is given anew with its identity. */
const IDENTITY = '/etc/machine-id';
/** As deep as it goes: the agent's own limit on entries holds. */
const DEEP = 64;
const WALK_MS = 60_000;
const MOST_PROCESSES = 512;
const LONGEST_COMMAND = 1024;
/** The kernel shows no longer command line than this. */
const COMMAND_LIMIT = 4 << 20;

/** What a guest says is in it. Nothing of it is trusted, and no file system of a guest is ever mounted here. */
export interface Contents {
  files: Map<string, FileInfo>;
  processes: Map<number, string>;
  /** Something was left out. */
  filesCut: boolean;
  processesCut: boolean;
}

export async function contentsOf(guest: GuestClient, signal: AbortSignal): Promise<Contents> {
  const files = new Map<string, FileInfo>();
  let filesCut = false;
  const limits = { signal, timeoutMs: WALK_MS };
  for (const entry of await guest.files.list('/', limits)) {
    if (NOT_FILES.has(entry.path)) continue;
    files.set(entry.path, entry);
    if (entry.type !== 'dir' || entry.symlinkTarget !== undefined) continue;
    try {
      for (const below of await guest.files.list(entry.path, { ...limits, depth: DEEP })) files.set(below.path, below);
    } catch (thrown) {
      // More than the agent lists at once; the other folders still can be told apart.
      if (!['too_large', 'guest_error'].includes(asForkdError(thrown).code)) throw thrown;
      filesCut = true;
    }
  }
  files.delete(IDENTITY);
  return { files, filesCut, ...(await processesOf(guest, signal)) };
}

async function processesOf(guest: GuestClient, signal: AbortSignal) {
  const entries = await guest.files.list('/proc', { signal });
  const pids = entries.flatMap(({ name }) => (/^[1-9]\d{0,9}$/.test(name) ? [Number(name)] : []));
  const processes = new Map<number, string>();
  for (const pid of pids.slice(0, MOST_PROCESSES)) {
    // One that ended meanwhile is not there; a thread of the kernel has no command line.
    const read = guest.files.read(`/proc/${pid}/cmdline`, { signal, maxBytes: COMMAND_LIMIT });
    const bytes = await read.catch(() => Buffer.of());
    const command = bytes.toString('utf8').replaceAll('\0', ' ').trim().slice(0, LONGEST_COMMAND);
    if (command !== '') processes.set(pid, command);
  }
  signal.throwIfAborted();
  return { processes, processesCut: pids.length > MOST_PROCESSES };
}

/** Of a file in a guest that is not larger than `most` bytes. */
export async function hashOf(guest: GuestClient, path: string, most: number, signal: AbortSignal): Promise<string> {
  return createHash('sha256')
    .update(await guest.files.read(path, { signal, maxBytes: most }))
    .digest('hex');
}

import { randomBytes } from 'node:crypto';
import { mkdir, readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';

const NAME = /^\.tmp-(\d+)-(\d+)-[0-9a-f]{8}$/;

/** A private directory in the store. Its name says which process owns it, so that a later build can tell if that died. */
export async function makeTemporary(store: string): Promise<string> {
  const name = `.tmp-${process.pid}-${await startTime(process.pid)}-${randomBytes(4).toString('hex')}`;
  const dir = join(store, name);
  await mkdir(dir, { mode: 0o700 });
  return dir;
}

/** A tool that was just killed may still be giving up its last file: hence the retries. */
export async function removeTemporary(dir: string): Promise<void> {
  await rm(dir, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
}

/** Removes what builders that no longer live have left behind. */
export async function removeStale(store: string): Promise<void> {
  for (const name of await readdir(store)) {
    const [, pid, start] = NAME.exec(name) ?? [];
    if (pid !== undefined && (await startTime(Number(pid))) !== start) await removeTemporary(join(store, name));
  }
}

/** Clock ticks since boot: together with the pid this names a process for good, although pids are used again. */
async function startTime(pid: number): Promise<string | undefined> {
  try {
    const stat = await readFile(`/proc/${pid}/stat`, 'latin1');
    // The second field is the program's name in parentheses and may itself hold spaces and parentheses.
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19];
  } catch {
    return undefined;
  }
}

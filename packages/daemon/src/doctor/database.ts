import { copyFile, mkdir, open, stat } from 'node:fs/promises';
import { SqliteStore } from '@forkd/controller';
import { asForkdError } from '@forkd/protocol';
import { type Check, fail, type Host, type Outcome, pass, skip } from './check.js';

const MAGIC = 'SQLite format 3\0';
/** Larger ones are only recognised, not read through. */
const LARGEST = 256 << 20;
const ATTEMPTS = 3;

export const databaseChecks: Check[] = [{ name: 'database', seconds: 10, run: database }];

/** A copy is checked, never the file itself: a running daemon must not notice. */
async function database({ data, scratch }: Host): Promise<Outcome> {
  const file = `${data}/state.db`;
  const wayOut = `Stop the daemon, move ${file} (and its -wal and -shm) away, and start it again: snapshots are found on disk.`;
  const size = (await stat(file).catch(() => undefined))?.size;
  if (size === undefined) return skip('not there yet', 'Start the daemon once (`forkd serve`): it makes it.');
  // SQLite makes the file empty, and writes its head with the first table.
  if (size > 0 && (await head(file)) !== MAGIC) return fail(`${file} is not a database`, wayOut);
  if (size > LARGEST) return pass(`${size >> 20} MiB, not read through`);
  const copy = `${scratch}/database`;
  await mkdir(copy, { recursive: true });
  if (!(await copied(file, `${copy}/state.db`)))
    return skip('it is being written to all the time', 'Run doctor again when the daemon has less to do.');
  try {
    new SqliteStore(`${copy}/state.db`).close();
    return pass(`${Math.ceil(size / 1024)} KiB, sound`);
  } catch (thrown) {
    const reason = asForkdError(thrown).message.replaceAll(`${copy}/state.db`, file);
    return fail(reason, reason.includes('newer') ? 'Use the newer forkd, or another data directory.' : wayOut);
  }
}

/** `false` when it kept changing meanwhile: then the copy may be torn. */
async function copied(file: string, target: string): Promise<boolean> {
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    const before = await marks(file);
    await copyFile(file, target);
    await copyFile(`${file}-wal`, `${target}-wal`).catch(() => {});
    if ((await marks(file)) === before) return true;
  }
  return false;
}

async function marks(file: string): Promise<string> {
  const all = await Promise.all(
    [file, `${file}-wal`].map((path) => stat(path, { bigint: true }).catch(() => undefined)),
  );
  return all.map((found) => `${found?.mtimeNs}/${found?.size}`).join();
}

async function head(file: string): Promise<string> {
  const handle = await open(file, 'r');
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(MAGIC.length), 0, MAGIC.length, 0);
    return buffer.toString('latin1', 0, bytesRead);
  } finally {
    await handle.close();
  }
}

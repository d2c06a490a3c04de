import { randomBytes } from 'node:crypto';
import { access, constants, mkdir, readdir, readFile, rm, stat, statfs, writeFile } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { type Check, fail, type Host, type Outcome, pass, skip, warn } from './check.js';

const GIB = 1 << 30;
/** The longest path of a Unix socket, and what comes after the data directory in those of a VM. */
const SOCKET_PATH_MAX = 107;
const OWNER = '/run/daemon/';
const SANDBOX = 'sb-00000000000000000000';
const SOCKET = '/console.sock';
/** A tag shorter than this is no hardship. */
const TAG_LENGTH = 20;

const SHORTER = 'Choose a data directory with a shorter path: FORKD_DATA=/var/lib/forkd';
const MISSING = 'Start the daemon once (`forkd serve`): it makes it.';

export const dataChecks: Check[] = [
  { name: 'data directory', run: ({ data }) => directory(data) },
  { name: 'socket paths', run: ({ data }) => socketPaths(data) },
  { name: 'snapshot dir', run: ({ data }) => snapshots(data) },
  { name: 'snapshot dir space', run: ({ data }) => space(data) },
  { name: 'reflink', run: reflink },
];

async function directory(data: string): Promise<Outcome> {
  const found = await stat(data).catch((error: NodeJS.ErrnoException) => error);
  if (found instanceof Error) return found.code === 'ENOENT' ? missing(data) : unusable(data, found);
  if (!found.isDirectory()) return fail(`${data} is not a directory`, 'Choose another one with FORKD_DATA or --data.');
  try {
    await trial(data, () => {});
  } catch (thrown) {
    return unusable(data, thrown as NodeJS.ErrnoException);
  }
  const mode = (found.mode & 0o777).toString(8);
  if (found.mode & 0o077)
    return warn(`${data} has mode ${mode}: others can read the memory of guests`, `chmod 700 ${data}`);
  if (found.uid !== process.geteuid?.())
    return warn(`${data} belongs to uid ${found.uid}`, `chown ${process.geteuid?.()} ${data}`);
  return pass(`${data}, mode ${mode}${(await claimed(data)) ? ', a daemon has it' : ''}`);
}

/** Nothing is made here: only the daemon makes its directory. */
async function missing(data: string): Promise<Outcome> {
  const above = await existing(data);
  try {
    if (!(await stat(above)).isDirectory()) throw Object.assign(new Error(), { code: 'ENOTDIR' });
    await access(above, constants.W_OK | constants.X_OK);
    return warn(`${data} does not exist yet`, MISSING);
  } catch (thrown) {
    const { code } = thrown as NodeJS.ErrnoException;
    return fail(`${data} does not exist and cannot be made (${code})`, `Run as root: install -d -m 700 ${data}`);
  }
}

function unusable(data: string, { code }: NodeJS.ErrnoException): Outcome {
  if (code === 'ENOSPC' || code === 'EDQUOT')
    return fail(`${data} is full`, 'Free space there, or point FORKD_DATA at a larger disk.');
  if (code === 'EROFS') return fail(`${data} is on a read-only file system`, `mount -o remount,rw on its file system`);
  if (code === 'ENAMETOOLONG') return fail('the path of the data directory is too long', SHORTER);
  return fail(
    `${data} cannot be written to (${code})`,
    `Run as root, or: chown ${process.geteuid?.()} ${data} && chmod 700 ${data}`,
  );
}

function socketPaths(data: string): Outcome {
  const left = SOCKET_PATH_MAX - Buffer.byteLength(`${resolve(data)}${OWNER}${SOCKET}`);
  if (left < SANDBOX.length)
    return fail(`the sockets of sandboxes would have paths of more than ${SOCKET_PATH_MAX} bytes`, SHORTER);
  const tag = left - 'zygote-'.length;
  if (tag < TAG_LENGTH) return warn(`the path leaves only ${tag} characters for a tag`, SHORTER);
  return pass('the path is short enough');
}

async function snapshots(data: string): Promise<Outcome> {
  const names = await readdir(`${data}/snapshots`).catch(() => undefined);
  if (!names) return skip('not there yet', MISSING);
  return pass(names.length === 0 ? 'no snapshots yet' : `${names.length} snapshots`);
}

async function space(data: string): Promise<Outcome> {
  const { bavail, bsize } = await statfs(await existing(data));
  const free = bavail * bsize;
  const gib = `${(free / GIB).toFixed(1)} GiB free`;
  const hint = 'Remove snapshots that are not needed (`forkd rmi TAG`), or point FORKD_DATA at a larger disk.';
  if (free >= 5 * GIB) return pass(gib);
  return free >= GIB ? warn(`only ${gib}`, hint) : fail(`only ${gib}`, hint);
}

/** Clones a file there, in the way the disk of a child is made. */
async function reflink({ data, helper }: Host): Promise<Outcome> {
  try {
    return await trial(data, async (file) => {
      const { method } = await helper.cloneFile(file, `${file}-clone`);
      if (method === 'reflink') return pass('disks are cloned without copying');
      return warn(
        'the file system has none: the disk of a child is copied, as far as it holds data',
        'Put the data directory on XFS (mkfs.xfs -m reflink=1) or btrfs.',
      );
    });
  } catch (thrown) {
    const reason = (thrown as NodeJS.ErrnoException).code ?? (thrown as Error).message;
    return skip(`not tried: nothing can be written to ${data} (${reason})`, 'See the check of the data directory.');
  }
}

/** Writes a file in a directory of its own there, for as long as `use` runs. */
async function trial<T>(data: string, use: (file: string) => T | Promise<T>): Promise<T> {
  const directory = `${data}/doctor-${randomBytes(6).toString('hex')}`;
  await mkdir(directory, { mode: 0o700 });
  try {
    await writeFile(`${directory}/file`, Buffer.alloc(64 << 10, 1));
    return await use(`${directory}/file`);
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

/** A daemon holds a name that is made of its directory, for as long as it lives. */
async function claimed(data: string): Promise<boolean> {
  const own = await stat(`${data}/run/daemon`).catch(() => undefined);
  if (!own) return false;
  // What comes after the name is the padding of its address.
  const name = new RegExp(`@forkd-${own.dev}-${own.ino}(?!\\d)`);
  return name.test(await readFile('/proc/net/unix', 'utf8'));
}

/** The nearest directory above that is there. */
async function existing(path: string): Promise<string> {
  let at = resolve(path);
  while (at !== '/') {
    if (await stat(at).catch(() => undefined)) break;
    at = dirname(at);
  }
  return at;
}

import { statfs } from 'node:fs/promises';
import { ForkdError } from '@forkd/protocol';

const MIB = 1024 * 1024;

/** Refuses at once what would fill the disk after minutes of work. */
export async function needSpace(dir: string, bytes: number): Promise<void> {
  const { bavail, bsize } = await statfs(dir);
  const free = bavail * bsize;
  if (free >= bytes) return;
  const [needed, left] = [bytes, free].map((size) => Math.ceil(size / MIB));
  throw new ForkdError('disk_full', `the image needs ${needed} MiB in ${dir}, which has ${left} MiB left`);
}

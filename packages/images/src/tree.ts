import { createHash } from 'node:crypto';
import type { Stats } from 'node:fs';
import { lstat, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { ForkdError } from '@forkd/protocol';

const BLOCK = 4096;

export interface TreeSize {
  inodes: number;
  bytes: number;
}

/** What a directory needs on a file system of 4 KiB blocks; a file with several names counts once. */
export async function treeSize(root: string): Promise<TreeSize> {
  const size: TreeSize = { inodes: 0, bytes: 0 };
  const linked = new Set<number>();
  for await (const [, stats] of walk(root)) {
    if (stats.nlink > 1 && !stats.isDirectory()) {
      if (linked.has(stats.ino)) continue;
      linked.add(stats.ino);
    }
    size.inodes += 1;
    size.bytes += Math.ceil(stats.size / BLOCK) * BLOCK;
  }
  return size;
}

/** Changes whenever anything in the tree does. Reads no contents: the change time of an inode cannot be set back. */
export async function treeFingerprint(root: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const [path, stats] of walk(root))
    hash.update(JSON.stringify([path, stats.mode, stats.uid, stats.gid, stats.size, stats.mtimeMs, stats.ctimeMs]));
  return hash.digest('hex');
}

/** Everything below `root` in a stable order, without following links or leaving its file system. */
async function* walk(root: string, below = '', device?: number): AsyncGenerator<[path: string, stats: Stats]> {
  const names = await readdir(join(root, below)).catch((cause) => {
    throw new ForkdError('invalid_request', `cannot read the directory ${join(root, below)}`, { cause });
  });
  const own = device ?? (await lstat(root)).dev;
  for (const name of names.sort()) {
    const path = join(below, name);
    const stats = await lstat(join(root, path));
    yield [path, stats];
    if (stats.isDirectory() && stats.dev === own) yield* walk(root, path, own);
  }
}

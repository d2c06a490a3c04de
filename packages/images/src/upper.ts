import { chmod, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { storedEntry } from './entry.js';
import { makeExt4, uuidFrom } from './ext4.js';
import { sha256 } from './hash.js';
import type { BuildOptions } from './progress.js';

const FILE = 'upper.img';
const MIB = 1024 * 1024;
const BYTES_PER_INODE = 16 * 1024;

/** The writable disk each guest gets a copy of: empty, sparse, with the two directories overlayfs asks for. */
export async function buildUpper(diskMib: number, options: BuildOptions): Promise<string> {
  const bytes = diskMib * MIB;
  const entry = await storedEntry(options, {
    kind: 'upper',
    inputs: { bytes },
    info: z.object({}),
    async build(out, work) {
      options.onProgress?.({ step: 'upper', detail: `${diskMib} MiB, sparse` });
      const content = join(work, 'content');
      for (const dir of [content, join(content, 'upper'), join(content, 'work')]) {
        await mkdir(dir);
        // `upper` lends its mode to the guest's root directory, whatever the umask here.
        await chmod(dir, 0o755);
      }
      const uuid = uuidFrom(sha256(`upper ${bytes}`));
      const inodes = Math.ceil(bytes / BYTES_PER_INODE);
      await makeExt4(join(out, FILE), content, { bytes, inodes, journal: true, uuid }, options);
      return {};
    },
  });
  return join(entry.dir, FILE);
}

import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { ForkdError } from '@forkd/protocol';
import { z } from 'zod';
import { diskImage } from './disk-image.js';
import { storedEntry } from './entry.js';
import { needSpace } from './free-space.js';
import { hashFile } from './hash.js';
import type { BuildOptions } from './progress.js';
import type { RootDisk } from './root-disk.js';
import { run } from './run.js';

const FILE = 'base.img';

/**
 * Takes an image of the user's as the read-only root disk. It is copied, not linked: what happens to the user's file
 * afterwards must not reach the guests, nor the other way round.
 */
export async function buildForeignRoot(image: string, options: BuildOptions): Promise<RootDisk> {
  options.onProgress?.({ step: 'image', detail: 'reading the root disk' });
  const hash = await hashFile(image, options.signal);
  const entry = await storedEntry(options, {
    kind: 'base',
    inputs: { image: hash },
    info: z.object({ hash: z.string() }),
    async build(out) {
      const copy = join(out, FILE);
      await needSpace(out, (await stat(image)).blocks * 512);
      options.onProgress?.({ step: 'image', detail: 'copying the root disk' });
      await run('cp', ['--reflink=auto', '--sparse=always', '--no-preserve=mode', '--', image, copy], options);
      if ((await hashFile(copy, options.signal)) !== hash)
        throw new ForkdError('state_conflict', 'the root disk was written to while it was copied', {
          hint: 'Unmount it and stop whatever writes to it.',
        });
      await diskImage(copy);
      return { hash };
    },
  });
  return { path: join(entry.dir, FILE), hash: entry.info.hash };
}

import { stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ForkdError } from '@forkd/protocol';
import type { FileSystem } from './disk-image.js';
import { buildKernel, type KernelSource } from './kernel.js';
import type { BuildOptions } from './progress.js';

/**
 * A kernel of the user's, with the modules it needs to reach a root disk of this kind: those beside it (`modules/`, or
 * `../lib/modules/RELEASE`), or those of the same release on the host.
 */
export async function foreignKernel(path: string, disk: FileSystem, options: BuildOptions): Promise<KernelSource> {
  const plain = { path, fileSystem: disk };
  const { release, absent } = await buildKernel(options, plain);
  if (absent.length === 0) return plain;
  const beside = dirname(path);
  const places = [join(beside, 'modules'), join(beside, '../lib/modules', release), join('/lib/modules', release)];
  for (const modules of places)
    if ((await stat(modules).catch(() => undefined))?.isDirectory()) {
      const source = { ...plain, modules };
      await buildKernel(options, source);
      return source;
    }
  throw new ForkdError(
    'invalid_request',
    `Linux ${release} has ${absent.join(', ')} not built in, and its modules are nowhere to be found`,
    { hint: `Put its modules in a directory "modules" beside it, or install them as /lib/modules/${release}.` },
  );
}

import { constants } from 'node:fs';
import { open, realpath } from 'node:fs/promises';
import type { CreateOptions } from '@forkd/controller';
import { diskImage, foreignKernel, type Recipe } from '@forkd/images';
import { asForkdError, type CreateSnapshot, ForkdError } from '@forkd/protocol';
import type { Caller } from './caller.js';

const KERNEL_MAX = 256 * 2 ** 20;
const ROOTFS_MAX = 64 * 2 ** 30;
/** What looks like a file there is none. */
const NO_FILES = /^\/(proc|sys|dev)(\/|$)/;

/** What forkd gives a guest of this form. */
const MEMORY_MIB = 512;
const VCPUS = 2;
/** As recipes have it by default. */
const DISK_MIB = 2048;
/** A guest that needs longer than this gets `boot_wait_secs` on top. */
const WARMUP_SECS = 120;

type Source = Pick<CreateOptions, 'recipe' | 'recipeName' | 'kernel' | 'rootfs'>;

/**
 * forkd's own form of a new snapshot: a kernel and a root disk that lie on the host. Both are only ever read. What forkd waits for
 * after boot, `boot_wait_secs`, is here the time the guest may take longer than usual: it is asked, not slept for.
 */
export async function fromKernelAndRootfs(body: CreateSnapshot, caller: Caller, images: string): Promise<Source> {
  if (caller.role !== 'admin')
    throw new ForkdError('forbidden', 'only an admin may name files of the host', { hint: 'Give a recipe.' });
  const rootfs = await naming('rootfs', () => hostFile(body.rootfs!, ROOTFS_MAX));
  const disk = await naming('rootfs', () => diskImage(rootfs));
  const path = await naming('kernel', () => hostFile(body.kernel!, KERNEL_MAX));
  const kernel = await naming('kernel', () => foreignKernel(path, disk, { store: images }));
  const timeout_secs = WARMUP_SECS + body.boot_wait_secs;
  const recipe: Recipe = {
    description: '',
    memory_mib: body.memory_mib ?? MEMORY_MIB,
    vcpus: body.vcpus ?? VCPUS,
    disk_mib: DISK_MIB,
    // Nothing to build from: the image takes its place.
    base: { packages: [] },
    files: [],
    env: {},
    warmup: { timeout_secs },
    ready: { timeout_secs },
  };
  return { recipe, recipeName: 'rootfs', kernel, rootfs };
}

/** The real path of a regular file that can be read and is neither empty nor too large. */
async function hostFile(given: string, largest: number): Promise<string> {
  const path = await realpath(given).catch(() => undefined);
  if (path === undefined) throw new ForkdError('invalid_request', 'there is no such file on the host');
  if (NO_FILES.test(path)) throw new ForkdError('invalid_request', 'not a regular file');
  // A pipe without a writer would otherwise be waited for.
  const file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOFOLLOW).catch(
    () => undefined,
  );
  if (!file) throw new ForkdError('invalid_request', 'it cannot be read');
  try {
    const found = await file.stat();
    if (!found.isFile()) throw new ForkdError('invalid_request', 'not a regular file');
    if (found.size === 0) throw new ForkdError('invalid_request', 'it is empty');
    if (found.size > largest) throw new ForkdError('invalid_request', `it is larger than ${largest / 2 ** 20} MiB`);
    return path;
  } finally {
    await file.close();
  }
}

/** Says which field is meant, where it is the file in it that is wrong. */
async function naming<T>(field: 'kernel' | 'rootfs', check: () => Promise<T>): Promise<T> {
  try {
    return await check();
  } catch (thrown) {
    const error = asForkdError(thrown);
    if (error.code !== 'invalid_request') throw error;
    throw new ForkdError('invalid_request', `body.${field}: ${error.message}`, { hint: error.hint, cause: error });
  }
}

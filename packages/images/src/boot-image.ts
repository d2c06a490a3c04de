import { copyFile, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ForkdError } from '@forkd/protocol';
import { compressedKernel, isBzImage } from './bzimage.js';
import { decompress } from './decompress.js';
import { bootsByPvh, isElf, isWhole, kernelRelease } from './elf-kernel.js';
import type { RunOptions } from './run.js';

export interface BootImage {
  file: 'vmlinux' | 'vmlinuz';
  release: string;
  /** The plain kernel that is in it. */
  vmlinux: Buffer;
}

/**
 * Puts the kernel into `out` in the form that starts fastest: a plain vmlinux where the VMM can enter it by PVH, because
 * a bzImage would be decompressed by the guest's own, possibly emulated, CPU at every boot.
 */
export async function bootImage(source: string, out: string, work: string, options: RunOptions): Promise<BootImage> {
  const image = await readFile(source);
  const plain = join(out, 'vmlinux');
  if (isElf(image)) await copyFile(source, plain);
  else if (isBzImage(image)) await unpack(image, plain, work, options);
  else throw new ForkdError('invalid_request', `${source} is neither a vmlinux nor a bzImage`);

  const vmlinux = await readFile(plain);
  const release = kernelRelease(vmlinux);
  if (!isElf(vmlinux) || release === undefined)
    throw new ForkdError('invalid_request', `${source} does not contain a Linux kernel`);
  if (!isWhole(vmlinux)) throw new ForkdError('invalid_request', `${source} is cut short`, { hint: 'Copy it again.' });
  if (bootsByPvh(vmlinux)) return { file: 'vmlinux', release, vmlinux };
  if (isElf(image))
    throw new ForkdError('invalid_request', `${source} cannot be started by PVH`, {
      hint: 'Build it with CONFIG_PVH=y, or give its bzImage.',
    });
  await rm(plain);
  await copyFile(source, join(out, 'vmlinuz'));
  return { file: 'vmlinuz', release, vmlinux };
}

async function unpack(image: Buffer, target: string, work: string, options: RunOptions): Promise<void> {
  const payload = compressedKernel(image);
  if (!payload) throw new ForkdError('invalid_request', 'the kernel is compressed in a way that is not known here');
  const packed = join(work, 'payload');
  await writeFile(packed, payload);
  await decompress(packed, target, options);
}

import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { ForkdError } from '@forkd/protocol';
import { z } from 'zod';
import { bootImage } from './boot-image.js';
import { DEBIAN_KERNEL, unpackDebianKernel } from './debian-kernel.js';
import type { FileSystem } from './disk-image.js';
import { absentDrivers } from './elf-kernel.js';
import { storedEntry } from './entry.js';
import { hashFile, sha256 } from './hash.js';
import { GUEST_MODULES, writeModules } from './module-order.js';
import type { BuildOptions } from './progress.js';
import { hasTool, needTools, type Tool, toolPath } from './tools.js';
import { treeFingerprint } from './tree.js';

/** A kernel of the user's own. Without `modules` (a lib/modules/RELEASE directory) it must have all drivers built in. */
export interface KernelSource {
  path: string;
  modules?: string | undefined;
  /** Of its root disk, where that is not ext4. */
  fileSystem?: FileSystem | undefined;
}

export interface Kernel {
  path: string;
  release: string;
  hash: string;
  /** In the order in which the guest loads them. */
  modules: string[];
  modulesHash: string;
  /** Drivers that a guest cannot do without and that are neither built in nor among the modules. */
  absent: string[];
}

/** Names of built-in drivers; overlay and ext4 cannot be told from other uses of these words. */
const DRIVERS = ['virtio-mmio', 'virtio_blk', 'virtio_console'];

const Info = z.object({
  file: z.string(),
  release: z.string(),
  hash: z.string(),
  modules: z.array(z.string()),
  modulesHash: z.string(),
  absent: z.array(z.string()).default([]),
});

export async function buildKernel(options: BuildOptions, source?: KernelSource): Promise<Kernel> {
  needKernelTools(source, options.tools);
  const other = source?.fileSystem === 'ext4' ? undefined : source?.fileSystem;
  const wanted = other === undefined ? GUEST_MODULES : [...GUEST_MODULES, { name: other }];
  const entry = await storedEntry(options, {
    kind: 'kernel',
    inputs: { source: source ? await given(source) : DEBIAN_KERNEL, modules: wanted },
    info: Info,
    async build(out, work) {
      const { path, modules } = source ?? (await unpackDebianKernel(work, options));
      options.onProgress?.({ step: 'kernel', detail: path });
      const { file, release, vmlinux } = await bootImage(path, out, work, options);
      const hash = await hashFile(join(out, file), options.signal);
      await mkdir(join(out, 'modules'));
      const names = modules ? await writeModules(modules, wanted, join(out, 'modules'), work, options) : [];
      const absent = modules ? [] : absentDrivers(vmlinux, other === undefined ? DRIVERS : [...DRIVERS, other]);
      const hashes = await Promise.all(names.map((name) => hashFile(join(out, 'modules', name))));
      return { file, release, hash, modules: names, modulesHash: sha256([...names, ...hashes].join()), absent };
    },
  });
  const { file, modules, ...rest } = entry.info;
  return { ...rest, path: join(entry.dir, file), modules: modules.map((name) => join(entry.dir, 'modules', name)) };
}

export function needKernelTools(source: KernelSource | undefined, tools?: string): void {
  if (source) return;
  const path = toolPath(tools);
  if (!hasTool('apt-get', path))
    throw new ForkdError('host_unfit', 'this host has no apt-get to download the guest kernel with', {
      hint: 'Give the path of a guest kernel (a vmlinux or bzImage, and its modules directory).',
    });
  const needed: Tool[] = ['apt-cache', 'apt-get', 'dpkg-deb', 'lz4', 'setpriv', 'xz'];
  needTools(needed, path);
}

async function given(source: KernelSource): Promise<unknown> {
  const hash = await hashFile(source.path).catch((cause) => {
    throw new ForkdError('invalid_request', `cannot read the kernel ${source.path}`, { cause });
  });
  return { hash, modules: source.modules === undefined ? null : await treeFingerprint(source.modules) };
}

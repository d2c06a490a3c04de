import { buildForeignRoot } from './foreign-root.js';
import { buildInitramfs } from './initramfs.js';
import { buildKernel, type KernelSource, needKernelTools } from './kernel.js';
import type { BuildOptions } from './progress.js';
import type { Recipe } from './recipe.js';
import { buildRootDisk, needRootDiskTools } from './root-disk.js';
import { buildUpper } from './upper.js';

export interface ImageOptions extends BuildOptions {
  /** The static agent binary that becomes the guest's first process. */
  agent: string;
  kernel?: KernelSource | undefined;
  /** An image file in place of the root disk that the recipe describes. */
  rootfs?: string | undefined;
}

/** Paths of everything a guest boots from, and what they contain. */
export interface Images {
  kernel: string;
  initramfs: string;
  base: string;
  upper: string;
  hashes: { kernel: string; initramfs: string; base: string };
  kernelRelease: string;
}

/** Throws `host_unfit`, naming them, where programs that build the images of a recipe are missing. */
export function needImageTools(): void {
  needKernelTools(undefined);
  needRootDiskTools({ base: { debian: 'bookworm', packages: [] }, files: [] });
}

export async function buildImages(recipe: Recipe, options: ImageOptions): Promise<Images> {
  needKernelTools(options.kernel, options.tools);
  if (options.rootfs === undefined) needRootDiskTools(recipe, options.tools);
  const kernel = await buildKernel(options, options.kernel);
  const initramfs = await buildInitramfs(kernel, options.agent, options);
  const base = options.rootfs ? await buildForeignRoot(options.rootfs, options) : await buildRootDisk(recipe, options);
  return {
    kernel: kernel.path,
    initramfs: initramfs.path,
    base: base.path,
    upper: await buildUpper(recipe.disk_mib, options),
    hashes: { kernel: kernel.hash, initramfs: initramfs.hash, base: base.hash },
    kernelRelease: kernel.release,
  };
}

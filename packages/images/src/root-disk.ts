import { chmod, mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { ForkdError } from '@forkd/protocol';
import { z } from 'zod';
import { canonicalKey } from './canonical-key.js';
import { installDebian } from './debian-root.js';
import { storedEntry } from './entry.js';
import { makeExt4, uuidFrom } from './ext4.js';
import { needSpace } from './free-space.js';
import { hashFile, sha256 } from './hash.js';
import { prepareRoot } from './prepare-root.js';
import type { BuildOptions } from './progress.js';
import type { Recipe } from './recipe.js';
import { run } from './run.js';
import { needRoot, needTools, type Tool, toolPath } from './tools.js';
import { treeFingerprint, treeSize } from './tree.js';

export interface RootDisk {
  path: string;
  hash: string;
}

const FILE = 'base.img';
const MIB = 1024 * 1024;
const SMALLEST_DEBIAN = 400 * MIB;
const INODE_BYTES = 256;

/** The part of a recipe that ends up on the root disk: all else may change without a new image. */
export type RootSource = Pick<Recipe, 'base' | 'files'>;

/** The read-only root disk that all guests of a recipe share. */
export async function buildRootDisk(source: RootSource, options: BuildOptions): Promise<RootDisk> {
  needRootDiskTools(source, options.tools);
  const inputs = await rootInputs(source);
  const entry = await storedEntry(options, {
    kind: 'base',
    inputs,
    info: z.object({ hash: z.string() }),
    async build(out, work) {
      const root = join(work, 'root');
      await mkdir(root);
      await chmod(root, 0o755);
      await fill(root, work, source, options);
      await prepareRoot(root, source.files);
      options.onProgress?.({ step: 'image', detail: FILE });
      const image = join(out, FILE);
      await makeImage(image, root, uuidFrom(canonicalKey('uuid', inputs)), options);
      await rm(root, { recursive: true });
      return { hash: await hashFile(image, options.signal) };
    },
  });
  return { path: join(entry.dir, FILE), hash: entry.info.hash };
}

/** The mirror is not among them: it says where the packages come from, their signatures say what they are. */
export async function rootInputs({ base, files }: RootSource): Promise<unknown> {
  const written = files.map(async ({ path, mode, content = '', source }) => ({
    path,
    mode,
    content: source === undefined ? sha256(content) : await hashFile(source),
  }));
  return {
    debian: base.debian,
    packages: [...base.packages].sort(),
    directory: base.directory === undefined ? undefined : await treeFingerprint(base.directory),
    files: await Promise.all(written),
  };
}

export function needRootDiskTools({ base }: RootSource, tools?: string): void {
  needRoot();
  const source: Tool[] = base.debian === undefined ? ['cp'] : ['mmdebstrap', 'unshare'];
  needTools([...source, 'mkfs.ext4', 'setpriv'], toolPath(tools));
}

async function fill(root: string, work: string, { base }: RootSource, options: BuildOptions): Promise<void> {
  if (base.debian !== undefined) {
    await needSpace(root, SMALLEST_DEBIAN);
    options.onProgress?.({ step: 'packages', detail: [base.debian, ...base.packages].join(' ') });
    await installDebian(root, work, base.debian, base.packages, options);
  } else if (base.directory !== undefined) {
    await needSpace(root, 2 * (await treeSize(base.directory)).bytes);
    options.onProgress?.({ step: 'copy', detail: base.directory });
    await run('cp', ['-a', '-x', '--sparse=always', `${base.directory}/.`, root], options);
  } else throw new ForkdError('recipe_invalid', 'base needs "debian" or "directory"');
}

/** The file is sparse, so a generous size costs nothing; too small a size fails the build. */
async function makeImage(image: string, root: string, uuid: string, options: BuildOptions): Promise<void> {
  const size = await treeSize(root);
  await needSpace(root, size.bytes);
  const inodes = size.inodes + 256;
  const bytes = Math.ceil(size.bytes * 1.05) + inodes * INODE_BYTES + 8 * MIB;
  await makeExt4(image, root, { bytes, inodes, journal: false, uuid }, options);
}

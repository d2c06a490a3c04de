import { truncate, writeFile } from 'node:fs/promises';
import type { BuildOptions } from './progress.js';
import { run } from './run.js';

const MIB = 1024 * 1024;

/** Spelled out, so that the host's mke2fs.conf has no say and every kernel since 4.x can mount the result. */
const FEATURES =
  'none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum';

export interface Ext4Options {
  bytes: number;
  inodes: number;
  /** Smallest journal there is; without it the file system is meant to be read only. */
  journal: boolean;
  /** Names the file system, so that the same input gives the same header. */
  uuid: string;
}

/** Makes a sparse ext4 image with the contents of `directory`, without mounting anything. */
export async function makeExt4(
  image: string,
  directory: string,
  ext4: Ext4Options,
  options: BuildOptions,
): Promise<void> {
  await writeFile(image, '', { flag: 'wx', mode: 0o644 });
  await truncate(image, Math.ceil(ext4.bytes / MIB) * MIB);
  // Tables count as initialised (holes read as zero): otherwise a kernel thread would zero them in every single child.
  const extended = `lazy_itable_init=0,lazy_journal_init=1,root_owner=0:0,hash_seed=${ext4.uuid}`;
  const journal = ext4.journal ? ['-O', `${FEATURES},has_journal`, '-J', 'size=4'] : ['-O', FEATURES];
  await run(
    'mkfs.ext4',
    // biome-ignore format: one option and its value per line reads best
    [
      '-q', '-F',
      '-b', '4096',
      '-I', '256',
      '-N', String(ext4.inodes),
      '-m', '0',
      '-U', ext4.uuid,
      '-E', extended,
      ...journal,
      '-d', directory,
      image,
    ],
    options,
  );
}

/** A version 8 UUID whose bits are a hash of the inputs. */
export function uuidFrom(hash: string): string {
  const hex = `${hash.slice(0, 12)}8${hash.slice(13, 16)}8${hash.slice(17, 32)}`;
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-');
}

import { open, stat } from 'node:fs/promises';
import { ForkdError } from '@forkd/protocol';

export type FileSystem = 'ext4' | 'squashfs' | 'erofs';

/** Where the superblocks of ext4 and erofs begin. */
const SUPERBLOCK = 1024;
const HEAD_BYTES = 2048;
const EXT4_ERRORS = 2;
const EXT4_NEEDS_RECOVERY = 4;

interface Superblock {
  kind: FileSystem;
  /** How long the file must be to hold the whole file system. */
  bytes: number;
  /** What keeps it from being mounted read-only. */
  problem?: string | undefined;
}

/** Which file system an image file holds; one that is none, cut short or not clean is refused. */
export async function diskImage(path: string): Promise<FileSystem> {
  const found = superblock(await head(path));
  if (!found)
    throw refused(
      'not a disk image: it holds neither ext4 nor squashfs nor erofs',
      'Give a raw image of one of these.',
    );
  const { size } = await stat(path);
  if (size < found.bytes)
    throw refused(`cut short: its ${found.kind} has ${found.bytes} bytes, the file ${size}`, 'Copy it again.');
  if (found.problem) throw refused(found.problem, 'Unmount it, then repair it: e2fsck -fy IMAGE');
  return found.kind;
}

export function superblock(start: Buffer): Superblock | undefined {
  if (start.length < HEAD_BYTES) return undefined;
  const block = start.subarray(SUPERBLOCK);
  if (block.readUInt16LE(56) === 0xef53) return ext4(block);
  if (block.readUInt32LE(0) === 0xe0f5e1e2)
    return { kind: 'erofs', bytes: block.readUInt32LE(36) * 2 ** Math.min(block[12]!, 31) };
  if (start.toString('latin1', 0, 4) === 'hsqs') return { kind: 'squashfs', bytes: Number(start.readBigUInt64LE(40)) };
  return undefined;
}

/** The journal of a file system that was not unmounted would have to be replayed, which a read-only disk does not allow. */
function ext4(block: Buffer): Superblock {
  const bytes = block.readUInt32LE(4) * 1024 * 2 ** Math.min(block.readUInt32LE(24), 6);
  const dirty = (block.readUInt32LE(96) & EXT4_NEEDS_RECOVERY) !== 0;
  const damaged = (block.readUInt16LE(58) & EXT4_ERRORS) !== 0;
  const problem = dirty
    ? 'not cleanly unmounted, or still mounted'
    : damaged
      ? 'damaged: it says so itself'
      : undefined;
  return { kind: 'ext4', bytes, problem };
}

async function head(path: string): Promise<Buffer> {
  const file = await open(path, 'r');
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(HEAD_BYTES), 0, HEAD_BYTES, 0);
    return buffer.subarray(0, bytesRead);
  } finally {
    await file.close();
  }
}

function refused(message: string, hint: string): ForkdError {
  return new ForkdError('invalid_request', message, { hint });
}

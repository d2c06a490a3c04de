import { chown, mkdir, rename, rm, stat, statfs, writeFile } from 'node:fs/promises';
import type { Scope } from '@forkd/host';
import { ForkdError } from '@forkd/protocol';
import type { DataDirectory } from './data-directory.js';
import { sync } from './durable.js';
import { type SnapshotMeta, snapshotFiles } from './snapshot.js';

/** Where the files of a snapshot are written before it exists; gone with the scope unless it was published. */
export async function makeDraft({ own, snapshots }: DataDirectory, tag: string, scope: Scope): Promise<string> {
  if (await stat(`${snapshots}/${tag}`).catch(() => undefined))
    throw new ForkdError('tag_exists', `snapshot ${tag} exists already`);
  const draft = `${own}/snapshot-${tag}`;
  await mkdir(draft).catch((cause: NodeJS.ErrnoException) => {
    if (cause.code !== 'EEXIST') throw cause;
    throw new ForkdError('state_conflict', `snapshot ${tag} is being created already`, { cause });
  });
  scope.add(() => rm(draft, { recursive: true, force: true }));
  return draft;
}

/** Guest RAM is a mapped file: where the disk filled up under it, the VMM would die without a word. */
export async function checkSpace(directory: string, mib: number): Promise<void> {
  const { bavail, bsize } = await statfs(directory);
  const freeMib = (bavail * bsize) / (1 << 20);
  if (freeMib < mib)
    throw new ForkdError('disk_full', `the snapshot needs ${mib} MiB, ${Math.floor(freeMib)} MiB are free`);
}

/** From here on the snapshot exists, whole, even if the host crashes; before, it does not. */
export async function publish({ snapshots }: DataDirectory, draft: string, meta: SnapshotMeta): Promise<void> {
  const target = `${snapshots}/${meta.tag}`;
  const files = snapshotFiles(draft);
  await writeFile(files.meta, `${JSON.stringify(meta, null, 2)}\n`);
  const diff = meta.branch?.diff ? [files.diff] : [];
  for (const file of [files.memory, ...diff, files.state, files.upper, files.meta, draft]) {
    // The user of the VMM that wrote it may soon be another VMM's.
    await chown(file, 0, 0);
    await sync(file);
  }
  try {
    await rename(draft, target);
  } catch (cause) {
    if (!['ENOTEMPTY', 'EEXIST'].includes((cause as NodeJS.ErrnoException).code ?? '')) throw cause;
    throw new ForkdError('tag_exists', `snapshot ${meta.tag} exists already`, { cause });
  }
  await sync(`${target}/..`);
}

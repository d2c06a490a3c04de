import type { FileInfo, GuestClient } from '@forkd/guest';
import type { SavedRam } from '@forkd/host';
import { type Diff, ForkdError } from '@forkd/protocol';
import { type Contents, contentsOf, hashOf } from './contents.js';
import { type SnapshotMeta, snapshotFiles } from './snapshot.js';

/** Entries of one list. */
const MOST = 1_000;
const LONGEST_PATH = 4_096;
/** Files of the same size are read and compared as long as this lasts; after that other times mean other content. */
const READ_BUDGET = 64 << 20;

/** One of the two, as a snapshot with a child to ask. */
export interface DiffSide {
  snapshot: SnapshotMeta;
  guest: GuestClient;
}

/** All generations of a line have the image and the disk of the first one. */
export function checkSameLine(a: SnapshotMeta, b: SnapshotMeta): void {
  if (a.hashes.memory === b.hashes.memory && a.hashes.base === b.hashes.base) return;
  throw new ForkdError('invalid_request', `${a.tag} and ${b.tag} are not of one line`, {
    hint: 'Compare what came from the same snapshot; see `forkd lineage`.',
  });
}

export async function diffContents(
  a: DiffSide,
  b: DiffSide,
  signal: AbortSignal,
): Promise<Omit<Diff, 'a' | 'b' | 'memory'>> {
  const [before, after] = await Promise.all([contentsOf(a.guest, signal), contentsOf(b.guest, signal)]);
  return { files: await files(a, b, before, after, signal), processes: processes(before, after) };
}

export function savedRam(snapshots: string, { tag, branch }: SnapshotMeta): SavedRam {
  const { memory, diff } = snapshotFiles(`${snapshots}/${tag}`);
  return branch?.diff ? { memory, diff } : { memory };
}

async function files(a: DiffSide, b: DiffSide, before: Contents, after: Contents, signal: AbortSignal) {
  const added = [...after.files.values()].filter(({ path }) => !before.files.has(path));
  const removed = [...before.files.values()].filter(({ path }) => !after.files.has(path));
  const changed: Diff['files']['changed'] = [];
  let budget = READ_BUDGET;
  for (const now of after.files.values()) {
    const then = before.files.get(now.path);
    if (!then || alike(then, now)) continue;
    if (isTouched(then, now) && now.size <= budget) {
      budget -= now.size;
      const hashes = [a, b].map(({ guest }) => hashOf(guest, now.path, READ_BUDGET, signal).catch(() => undefined));
      const [one, other] = await Promise.all(hashes);
      signal.throwIfAborted();
      if (one !== undefined && one === other) continue;
    }
    changed.push({ ...shown(now), size_before: then.size });
  }
  const cut = before.filesCut || after.filesCut;
  return {
    added: added.map(shown).slice(0, MOST),
    changed: changed.slice(0, MOST),
    removed: removed.map(shown).slice(0, MOST),
    truncated: cut || [added, changed, removed].some(({ length }) => length > MOST),
  };
}

/** The time and size of a folder only say that something in it has changed. */
function alike(a: FileInfo, b: FileInfo): boolean {
  const same = a.type === b.type && a.mode === b.mode && a.owner === b.owner && a.symlinkTarget === b.symlinkTarget;
  return same && (a.type === 'dir' || (a.size === b.size && a.modifiedTime === b.modifiedTime));
}

/** Whether nothing but the time differs, so that the content decides. */
function isTouched(a: FileInfo, b: FileInfo): boolean {
  return a.type === 'file' && a.size === b.size && alike(a, { ...b, modifiedTime: a.modifiedTime });
}

function shown({ path, type, size }: FileInfo) {
  return { path: path.slice(0, LONGEST_PATH), type, size };
}

function processes(before: Contents, after: Contents): Diff['processes'] {
  const only = (those: Contents, others: Contents) =>
    [...those.processes]
      .filter(([pid, command]) => others.processes.get(pid) !== command)
      .map(([pid, command]) => ({ pid, command }));
  const truncated = before.processesCut || after.processesCut;
  return { added: only(after, before), removed: only(before, after), truncated };
}

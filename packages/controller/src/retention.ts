import type { SnapshotView } from './snapshots.js';

/** What is kept of the branches; 0: all of it. */
export interface Retention {
  /** The newest so many of each line. */
  keepLast: number;
  /** On disk, all lines together. */
  maxBytes: number;
}

export interface Removal {
  tag: string;
  owner: string;
  why: string;
  bytes: number;
}

export interface Held {
  views: SnapshotView[];
  /** What each takes on disk by itself. */
  bytes: ReadonlyMap<string, number>;
  /** By a sandbox, a workspace or a writer. */
  isUsed(tag: string): boolean;
  /** In seconds, as the times of the records. */
  now: number;
}

/**
 * What is to be removed, children before parents. Only branches grow old, and any snapshot whose time is up; never what is
 * pinned, in use, or the parent of something that stays; for room never the newest of a line.
 */
export function outdated({ views, bytes, isUsed, now }: Held, { keepLast, maxBytes }: Retention): Removal[] {
  const doomed = new Map<string, Removal>();
  const parents = views.map((view) => [view.tag, view.meta?.parent] as const);
  const mayGo = ({ tag, status, pinned }: SnapshotView): boolean =>
    status === 'ready' &&
    !pinned &&
    !doomed.has(tag) &&
    !isUsed(tag) &&
    parents.every(([child, parent]) => parent !== tag || doomed.has(child));
  const doom = ({ tag, owner }: SnapshotView, why: string): void =>
    void doomed.set(tag, { tag, owner, why, bytes: bytes.get(tag) ?? 0 });

  const reasons = new Map<string, string>();
  for (const view of tooMany(views, keepLast)) reasons.set(view.tag, `more than the last ${keepLast} of its line`);
  for (const { tag, expires_at } of views)
    if (expires_at != null && expires_at <= now) reasons.set(tag, 'its time is up');
  // Whenever a child goes its parent may follow.
  for (let before = -1; before !== doomed.size; ) {
    before = doomed.size;
    for (const view of views) if (reasons.has(view.tag) && mayGo(view)) doom(view, reasons.get(view.tag)!);
  }
  const oldestFirst = views.filter(isBranch).sort(byAge);
  // The last state of a line is worth more than the room it takes.
  const older = new Set(tooMany(views, 1));
  const left = (): number =>
    oldestFirst.reduce((sum, { tag }) => sum + (doomed.has(tag) ? 0 : (bytes.get(tag) ?? 0)), 0);
  while (maxBytes > 0 && left() > maxBytes) {
    const next = oldestFirst.find((view) => older.has(view) && mayGo(view));
    if (!next) break;
    doom(next, `all branches take more than ${maxBytes} bytes`);
  }
  return [...doomed.values()];
}

function tooMany(views: SnapshotView[], keepLast: number): SnapshotView[] {
  if (keepLast === 0) return [];
  const counts = new Map<string, number>();
  return views
    .filter(isBranch)
    .sort(byAge)
    .reverse()
    .filter(({ meta }) => {
      const line = meta!.hashes.memory;
      counts.set(line, (counts.get(line) ?? 0) + 1);
      return counts.get(line)! > keepLast;
    });
}

function isBranch({ meta }: SnapshotView): boolean {
  return meta?.branch != null;
}

function byAge(a: SnapshotView, b: SnapshotView): number {
  return a.created_at - b.created_at || (a.tag < b.tag ? -1 : 1);
}

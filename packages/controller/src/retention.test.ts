import { expect, it } from 'vitest';
import { type Held, outdated } from './retention.js';
import type { SnapshotView } from './snapshots.js';

/** A branch, as far as it matters here: `n` is when it was made. */
function branch(tag: string, n: number, parent = 'base', more: Partial<SnapshotView> = {}, line = 'one'): SnapshotView {
  const meta = { parent, branch: {}, hashes: { memory: line } } as unknown as NonNullable<SnapshotView['meta']>;
  return { tag, owner: 'ann', status: 'ready', created_at: n, recipe: null, warning: null, meta, ...more };
}

const base: SnapshotView = { ...branch('base', 0), meta: { parent: null, branch: null } as never };

function removed(views: SnapshotView[], keepLast = 0, maxBytes = 0, used: string[] = []): string[] {
  const bytes = new Map(views.map(({ tag }) => [tag, 10]));
  const held: Held = { views: [base, ...views], bytes, isUsed: (tag) => used.includes(tag), now: 1000 };
  return outdated(held, { keepLast, maxBytes }).map(({ tag }) => tag);
}

const five = [1, 2, 3, 4, 5].map((n) => branch(`b${n}`, n));

it('without limits everything stays', () => {
  expect(removed(five)).toEqual([]);
});

it('the newest of each line stay', () => {
  const other = [6, 7].map((n) => branch(`o${n}`, n, 'base', {}, 'two'));
  expect(removed([...five, ...other], 2)).toEqual(['b1', 'b2', 'b3']);
});

it('what is over the budget goes, the oldest first, and no more than has to', () => {
  expect(removed(five, 0, 25)).toEqual(['b1', 'b2', 'b3']);
  expect(removed(five, 0, 50)).toEqual([]);
  expect(removed(five, 0, 1)).toEqual(['b1', 'b2', 'b3', 'b4']);
  expect(removed(five, 4, 39)).toEqual(['b1', 'b2']);
});

it('whose time is up goes, also one that is no branch', () => {
  expect(
    removed([branch('late', 1, 'base', { expires_at: 1000 }), branch('early', 1, 'base', { expires_at: 1001 })]),
  ).toEqual(['late']);
  const alone = { ...base, tag: 'alone', expires_at: 5 };
  expect(removed([alone])).toEqual(['alone']);
});

it('never what is pinned, in use, being written, or the parent of what stays', () => {
  const views = [
    branch('pinned', 1, 'base', { pinned: 1 }),
    branch('used', 2),
    branch('writing', 3, 'base', { status: 'writing', expires_at: 1 }),
    branch('parent', 4),
    branch('child', 5, 'parent', { pinned: 1 }),
    branch('free', 6),
    branch('new', 7),
  ];
  expect(removed(views, 1, 0, ['used'])).toEqual(['free']);
  expect(removed(views, 0, 1, ['used'])).toEqual(['free']);
});

it('a chain goes from its end', () => {
  const chain = [branch('c1', 1), branch('c2', 2, 'c1'), branch('c3', 3, 'c2')];
  const late = chain.map((view) => ({ ...view, expires_at: 1 }));
  expect(removed(late)).toEqual(['c3', 'c2', 'c1']);
  // The newest is kept, and holds those it came from.
  expect(removed(chain, 1)).toEqual([]);
  expect(removed(chain, 0, 15)).toEqual([]);
});

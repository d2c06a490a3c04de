import { ForkdError, type MaxForks } from '@forkd/protocol';
import type { Budget } from './store/records.js';
import type { Store } from './store/store.js';

/** What a guest that may fork by itself can make at most where nobody has said it. */
const GUEST_FORKS = { count: 32, depth: 8, bytes: 4 * 2 ** 30 };

const NO_BOUNDS = { count: null, depth: null, bytes: null };

/**
 * Of a new sandbox: that of the snapshot it comes from, or a first one. A guest that may fork by itself always has all
 * bounds.
 */
export function budgetOf(
  id: string,
  inherited: Budget | null,
  wanted: MaxForks | undefined,
  guestBranch: boolean,
): Budget | null {
  if (inherited && wanted)
    throw new ForkdError('invalid_request', 'max_forks: the snapshot has a budget of its line already', {
      hint: 'Leave it out: it is inherited.',
    });
  const bounds = inherited ?? wanted;
  if (!bounds && !guestBranch) return null;
  const { count, depth, bytes } = guestBranch ? GUEST_FORKS : NO_BOUNDS;
  return {
    line: inherited?.line ?? id,
    level: inherited ? inherited.level + 1 : 0,
    count: bounds?.count ?? count,
    depth: bounds?.depth ?? depth,
    bytes: bounds?.bytes ?? bytes,
  };
}

/** Whether `n` more children of something with this budget may exist. */
export function checkForks(store: Store, budget: Budget | null, n: number): void {
  if (!budget) return;
  const { line, level, depth, count } = budget;
  if (depth !== null && level + 1 > depth) throw exceeded(budget, 'depth', level + 1, depth);
  const forks = store.lineForks(line) + n;
  if (count !== null && forks > count) throw exceeded(budget, 'count', forks, count);
}

/** Counts a branch before it is published, or refuses it. */
export function admitBranch(store: Store, tag: string, budget: Budget | null, bytes: number): void {
  if (!budget) return;
  const used = store.lineBytes(budget.line) + bytes;
  if (budget.bytes !== null && used > budget.bytes) throw exceeded(budget, 'bytes', used, budget.bytes);
  store.changeSnapshot(tag, { line: budget.line, bytes });
}

function exceeded({ line }: Budget, limit: keyof MaxForks, wanted: number, most: number): ForkdError {
  return new ForkdError('budget_exceeded', `the forks of ${line} have a ${limit} of at most ${most}, not ${wanted}`, {
    details: { line, limit, wanted, most },
    ...(limit === 'depth' && { hint: 'Fork from a sandbox further up, or spawn the first one with a larger depth.' }),
  });
}

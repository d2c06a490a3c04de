import { newSandboxId } from '@forkd/protocol';
import { expect, it } from 'vitest';
import { budgetOf } from './budget.js';

const id = newSandboxId();
const line = newSandboxId();

it('a guest that may fork by itself always has all bounds, and none is wider than what was given', () => {
  expect(budgetOf(id, null, undefined, false)).toBe(null);
  expect(budgetOf(id, null, undefined, true)).toEqual({ line: id, level: 0, count: 32, depth: 8, bytes: 2 ** 32 });
  expect(budgetOf(id, null, { count: 0, depth: 99 }, true)).toMatchObject({ count: 0, depth: 99, bytes: 2 ** 32 });
  expect(budgetOf(id, null, { count: 3 }, false)).toMatchObject({ count: 3, depth: null, bytes: null });
  const inherited = { line, level: 4, count: 2, depth: null, bytes: null };
  expect(budgetOf(id, inherited, undefined, false)).toEqual({ ...inherited, level: 5 });
  expect(budgetOf(id, inherited, undefined, true)).toEqual({ line, level: 5, count: 2, depth: 8, bytes: 2 ** 32 });
  expect(() => budgetOf(id, inherited, { count: 9 }, true)).toThrowError(/inherited|already/);
});

import { expect, it } from 'vitest';
import { percentile } from './statistics.js';

it('a percentile of few samples is neither the next higher one nor the highest', () => {
  const ten = [10, 9, 8, 7, 6, 5, 4, 3, 2, 1];
  expect(percentile(ten, 0.5)).toBe(5.5);
  expect(percentile(ten, 0.9)).toBeCloseTo(9.1);
  expect([percentile(ten, 0), percentile(ten, 1)]).toEqual([1, 10]);
  expect([percentile([7], 0.9), percentile([], 0.5)]).toEqual([7, Number.NaN]);
});

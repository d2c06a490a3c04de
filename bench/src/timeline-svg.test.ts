import { expect, it } from 'vitest';
import { timelineSvg } from './timeline-svg.js';

it('a picture is well-formed XML, whatever the recipe is called', () => {
  const sample = { id: 'sb-1', started: 0, restored: 1, ready: 2, answered: 3 };
  const svg = timelineSvg('2 children of <a & b>', [sample, { ...sample, id: 'sb-2' }]);
  const open: string[] = [];
  for (const [, end, name, attributes, empty] of svg.matchAll(/<(\/?)(\w+)((?: [\w-]+="[^"<&]*")*)(\/?)>/g)) {
    expect(attributes).toBeDefined();
    if (end) expect(open.pop()).toBe(name);
    else if (!empty) open.push(name!);
  }
  expect(open).toEqual([]);
  const text = svg.replaceAll(/<\/?\w+(?: [\w-]+="[^"<&]*")*\/?>/g, '');
  expect(text).not.toMatch(/<|&(?!amp;|lt;)/);
  expect(text).toContain('2 children of &lt;a &amp; b>');
});

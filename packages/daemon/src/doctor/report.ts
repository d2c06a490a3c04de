import type { Result, Status } from './check.js';

const GLYPHS: Record<Status, [glyph: string, colour: number]> = {
  pass: ['✓', 32],
  warn: ['!', 33],
  fail: ['✗', 31],
  skip: ['-', 90],
};

export type Report = { checks: Result[] } & Record<Status, number>;

export function report(checks: Result[]): Report {
  const count = (status: Status): number => checks.filter((check) => check.status === status).length;
  return { checks, pass: count('pass'), warn: count('warn'), fail: count('fail'), skip: count('skip') };
}

/** For people: a line per check, and under each that has something to repair how to do it. */
export function asTable({ checks, ...counts }: Report, coloured: boolean): string {
  const width = Math.max(...checks.map(({ name }) => name.length));
  const lines = checks.map(({ name, status, detail, hint }) => {
    const [glyph, colour] = GLYPHS[status];
    const mark = coloured ? `\x1b[${colour}m${glyph}\x1b[0m` : glyph;
    const advice = status === 'warn' || status === 'fail' ? `\n  ${' '.repeat(width)}  → ${hint}` : '';
    return `${mark} ${name.padEnd(width)}  ${detail}${advice}`;
  });
  const total = Object.entries(counts).map(([status, count]) => `${status}=${count}`);
  return [...lines, '', total.join(' ')].join('\n');
}

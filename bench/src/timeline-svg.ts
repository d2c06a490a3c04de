import type { Sample } from './fan-out.js';

const WIDTH = 960;
const LEFT = 40;
const RIGHT = 40;
const TOP = 56;
const PHASES = [
  { name: 'VMM forked or started', from: 'started', to: 'restored', color: '#8fb8de' },
  { name: 'guest takes on its identity', from: 'restored', to: 'ready', color: '#f2b880' },
  { name: 'first eval', from: 'ready', to: 'answered', color: '#6aa67a' },
] as const;

/** A picture of the fan-out: one row per child, time to the right. */
export function timelineSvg(title: string, samples: Sample[]): string {
  const rows = [...samples].sort((a, b) => a.started - b.started);
  const end = Math.max(...rows.map((row) => row.answered));
  const height = Math.max(2, Math.min(10, 900 / rows.length));
  const bottom = TOP + rows.length * height;
  const x = (time: number): string => (LEFT + (time / end) * (WIDTH - LEFT - RIGHT)).toFixed(1);
  const bars = rows.flatMap((row, index) =>
    PHASES.map(({ from, to, color }) => {
      const width = Number(x(row[to])) - Number(x(row[from]));
      return `<rect x="${x(row[from])}" y="${(TOP + index * height).toFixed(1)}" width="${width.toFixed(1)}" height="${(height * 0.85).toFixed(1)}" fill="${color}"/>`;
    }),
  );
  const ticks = Array.from({ length: 6 }, (_, index) => (end * index) / 5).map(
    (time) =>
      `<line x1="${x(time)}" y1="${TOP}" x2="${x(time)}" y2="${bottom}" stroke="#ddd"/><text x="${x(time)}" y="${bottom + 18}" text-anchor="middle">${Math.round(time)} ms</text>`,
  );
  const legend = PHASES.map(
    ({ name, color }, index) =>
      `<rect x="${LEFT + index * 230}" y="32" width="12" height="12" fill="${color}"/><text x="${LEFT + 18 + index * 230}" y="43">${name}</text>`,
  );
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${bottom + 32}" font-family="sans-serif" font-size="12">
<title>${escaped(title)}</title>
<rect width="100%" height="100%" fill="white"/>
<text x="${LEFT}" y="20" font-size="15">${escaped(title)}</text>
${[...legend, ...ticks, ...bars].join('\n')}
</svg>
`;
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
}

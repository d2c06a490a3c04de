import { spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readArguments } from './arguments.js';
import { endProgress, showProgress } from './progress-line.js';
import { resultsDirectory } from './results.js';
import { percentile, rounded } from './statistics.js';

const ROUNDS = 5;
const DEMO = fileURLToPath(new URL('demo.js', import.meta.url));

/** Each is a whole demo, with a parent of its own. */
const VARIANTS = {
  jail_and_network: { flags: [], network: 'auto' },
  jail: { flags: [], network: 'none' },
  network: { flags: ['--no-jail'], network: 'auto' },
  none: { flags: ['--no-jail'], network: 'none' },
} as const;
type Variant = keyof typeof VARIANTS;
const NAMES = Object.keys(VARIANTS) as Variant[];

const { n, recipe } = readArguments();
const walls: Record<Variant, number[]> = { jail_and_network: [], jail: [], network: [], none: [] };
for (let round = 0; round < ROUNDS; round++)
  // In another order each time: the machine may grow faster or slower meanwhile.
  for (const [index] of NAMES.entries()) {
    const name = NAMES[(index + round) % NAMES.length]!;
    showProgress({ step: 'fan-out', detail: `round ${round + 1} of ${ROUNDS}, ${name}` });
    walls[name].push(wallMs(name));
  }
endProgress();

const medians = Object.fromEntries(NAMES.map((name) => [name, rounded(percentile(walls[name], 0.5))]));
const added = (name: Variant): number => rounded(100 * (medians[name]! / medians.none! - 1));
const summary = {
  n,
  wall_ms: medians,
  added_pct: { jail_and_network: added('jail_and_network'), jail: added('jail'), network: added('network') },
};
mkdirSync(resultsDirectory(), { recursive: true });
writeFileSync(join(resultsDirectory(), `walls-${n}-${Date.now()}.json`), JSON.stringify({ summary, recipe, walls }));
console.log(JSON.stringify(summary));

/** From the first child's start until the last one has answered. */
function wallMs(name: Variant): number {
  const { flags, network } = VARIANTS[name];
  const args = [DEMO, '--n', `${n}`, '--recipe', recipe, ...flags];
  const env = { ...process.env, FORKD_NETWORK: network };
  const { status, stderr } = spawnSync(process.execPath, args, { env, stdio: ['ignore', 'ignore', 'pipe'] });
  if (status !== 0) throw new Error(`the demo failed (${name}):\n${stderr}`);
  const file = join(resultsDirectory(), `demo-${recipe}-${n}.json`);
  const samples: { started: number; answered: number }[] = JSON.parse(readFileSync(file, 'utf8'));
  return Math.max(...samples.map(({ answered }) => answered)) - Math.min(...samples.map(({ started }) => started));
}

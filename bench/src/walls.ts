import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { inParallel } from '@forkd/controller';
import { readArguments } from './arguments.js';
import { fanOut } from './fan-out.js';
import { endProgress, showProgress } from './progress-line.js';
import { resultsDirectory } from './results.js';
import { inSession, type Session, type Walls, type Warmed, withParent } from './session.js';
import { percentile, rounded } from './statistics.js';
import { KILL_WIDTH } from './with-daemon.js';

/** Not all parents are alike: what a guest does every few seconds falls into the first seconds of its children, or does not. */
const GENERATIONS = 3;
const ROUNDS = 6;

const VARIANTS = {
  jail_and_network: {},
  jail: { mode: 'none' },
  network: { jail: 'none' },
  none: { mode: 'none', jail: 'none' },
} satisfies Record<string, Walls>;
type Variant = keyof typeof VARIANTS;
const NAMES = Object.keys(VARIANTS) as Variant[];

interface Subject {
  session: Session;
  warmed: Warmed;
}

const { n, recipe } = readArguments();
const walls: Record<Variant, number[]> = { jail_and_network: [], jail: [], network: [], none: [] };
for (let generation = 0; generation < GENERATIONS && !process.exitCode; generation++)
  // All parents are there from the beginning: the machine may get faster or slower, so fan-outs to be compared follow each other.
  await withSubjects(turned(generation), {}, async (subjects) => {
    for (let round = 0; round < ROUNDS; round++)
      for (const name of turned(round)) {
        showProgress({
          step: 'fan-out',
          detail: `parents ${generation + 1}, round ${round + 1} of ${ROUNDS}, ${name}`,
        });
        const ms = await wallMs(subjects[name]!);
        // The first one of a parent is not like those that follow.
        if (round > 0) walls[name].push(ms);
      }
  });
endProgress();
if (!process.exitCode) {
  const median = (name: Variant): number => percentile(walls[name], 0.5);
  /** By how much a fan-out took longer than the one of the same round without any wall. */
  const added = (name: Variant): number => {
    const times = walls[name].map((ms, round) => ms / walls.none[round]!);
    return rounded(100 * (percentile(times, 0.5) - 1));
  };
  const summary = {
    n,
    rounds: walls.none.length,
    wall_ms: Object.fromEntries(NAMES.map((name) => [name, rounded(median(name))])),
    added_pct: { jail_and_network: added('jail_and_network'), jail: added('jail'), network: added('network') },
  };
  await mkdir(resultsDirectory(), { recursive: true });
  const raw = JSON.stringify({ summary, recipe, walls });
  await writeFile(join(resultsDirectory(), `walls-${n}-${Date.now()}.json`), raw);
  console.log(JSON.stringify(summary));
}

function turned(by: number): Variant[] {
  return NAMES.map((_, index) => NAMES[(index + by) % NAMES.length]!);
}

type Subjects = Partial<Record<Variant, Subject>>;

/** A controller and a parent for each variant. */
async function withSubjects(
  [name, ...others]: Variant[],
  subjects: Subjects,
  use: (subjects: Subjects) => Promise<void>,
): Promise<void> {
  if (!name) return use(subjects);
  await inSession(
    (session) =>
      withParent(session, (warmed) => withSubjects(others, { ...subjects, [name]: { session, warmed } }, use)),
    VARIANTS[name],
  );
}

/** Until the last child has answered; then they end. */
async function wallMs({ session, warmed }: Subject): Promise<number> {
  const { wallMs, sandboxes, failures } = await fanOut(session, warmed, n, session.args.width);
  await inParallel(sandboxes.length, KILL_WIDTH, (index) => sandboxes[index]!.kill());
  if (failures[0]) throw failures[0];
  return wallMs;
}

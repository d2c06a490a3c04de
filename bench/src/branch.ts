import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { EvalResponse, SandboxInfo, SnapshotInfo } from '@forkd/protocol';
import { readArguments } from './arguments.js';
import { depthSpawns } from './branch-depth.js';
import { goals } from './branch-goals.js';
import { Ticks } from './branch-ticks.js';
import { endProgress, showProgress } from './progress-line.js';
import type { RestClient } from './rest-client.js';
import { resultsDirectory } from './results.js';
import { percentile, rounded } from './statistics.js';
import { withDaemon } from './with-daemon.js';

const MODES = ['live', 'diff', 'full'] as const;
type Mode = (typeof MODES)[number];

/** What the guest holds or does, in a guest that is as large as that needs. */
const LOADS = {
  '0': { tag: 'small', mib: 0 },
  '30': { tag: 'small', mib: 30 },
  '100': { tag: 'small', mib: 100 },
  '300': { tag: 'large', mib: 300 },
  writing: { tag: 'small', mib: 0 },
} as const;
type Load = keyof typeof LOADS;

const MEMORY_MIB = { small: 256, large: 768 };
const CONSECUTIVE = 10;
/** Modes that stop the guest for as long as they write are tried in every so many rounds only. */
const SLOW_EVERY = 2;

/** Copies of one block of random bytes: none of it is zero, and it is there at once. */
const hold = (mib: number): string => `held = bytearray(__import__('os').urandom(1 << 20)) * ${mib}; len(held)`;
const WRITER = `
import os
blocks = [os.urandom(1 << 20) for _ in range(2)]
memory = bytearray(64 << 20)
turn = 0
while True:
    turn += 1
    for at in range(0, len(memory), 1 << 20):
        memory[at:at + (1 << 20)] = blocks[turn % 2]
    if turn == 1: os.write(1, b'.')
`;

interface Sample {
  mode: Mode;
  load: Load;
  pauseMs: number;
  gapMs: number;
  baselineGapMs: number;
  returnMs: number;
  readyMs: number;
  firstEvalMs: number;
  dirtyBytes: number;
  physicalBytes: number;
}

const { n: rounds, recipe } = readArguments();

await withDaemon(async (rest) => {
  for (const [tag, memory_mib] of Object.entries(MEMORY_MIB)) {
    showProgress({ step: 'snapshot', detail: `${recipe}, ${memory_mib} MiB` });
    await rest.call('POST', '/v1/snapshots', { tag, recipe, memory_mib });
  }
  const samples: Sample[] = [];
  for (let round = 0; round < rounds; round++)
    for (const load of Object.keys(LOADS) as Load[]) {
      showProgress({ step: 'branch', detail: `round ${round + 1} of ${rounds}, ${load}` });
      samples.push(...(await trials(rest, load, round)));
    }
  showProgress({ step: 'row', detail: `${CONSECUTIVE} branches of one sandbox` });
  const consecutive = await inARow(rest);
  showProgress({ step: 'depth', detail: 'spawns from generation 0, 1 and 5' });
  const depth = await depthSpawns(rest, 'small', rounds);
  endProgress();

  const summary = {
    ...Object.fromEntries(MODES.map((mode) => [mode, cells(samples.filter((sample) => sample.mode === mode))])),
    consecutive_live_gap_ms: consecutive.map((gap) => rounded(gap)),
    ...depth.summary,
  };
  await mkdir(resultsDirectory(), { recursive: true });
  const raw = JSON.stringify({ summary, recipe, samples, consecutive, depth: depth.times });
  await writeFile(join(resultsDirectory(), `branch-${recipe}-${Date.now()}.json`), raw);
  for (const line of goals(summary as never)) console.error(`  ${line}`);
  console.log(JSON.stringify(summary));
});

/** All modes in one fresh sandbox, in another order each round. */
async function trials(rest: RestClient, load: Load, round: number): Promise<Sample[]> {
  const { tag, mib } = LOADS[load];
  const id = await spawn(rest, tag);
  if (mib > 0) await evaluate(rest, id, hold(mib));
  const writing = load === 'writing' ? await write(rest, id) : undefined;
  const turned = MODES.map((_, index) => MODES[(index + round) % MODES.length]!);
  const order = turned.filter((mode) => mode === 'live' || round % SLOW_EVERY === 0);
  const samples: Sample[] = [];
  const seen = await withTicks(rest, id, async (ticks) => {
    const figures: Seen[] = [];
    for (const mode of order) figures.push(await watched(rest, ticks, id, mode));
    return figures;
  });
  for (const [index, mode] of order.entries())
    samples.push({ mode, load, ...seen[index]!, firstEvalMs: await firstEval(rest, id, mode) });
  writing?.end();
  await rest.call('DELETE', `/v1/sandboxes/${id}`);
  return samples;
}

type Seen = Omit<Sample, 'mode' | 'load' | 'firstEvalMs'>;

/** What the guest sees, and a caller who does not wait: only live branches need not be waited for. */
async function watched(rest: RestClient, ticks: Ticks, id: string, mode: Mode): Promise<Seen> {
  const measured = await ticks.during(() => branch(rest, id, mode, mode !== 'live'));
  const { gapMs: baselineGapMs } = await ticks.during(() => sleep(measured.value.readyMs));
  const { info, returnMs, readyMs } = measured.value;
  await rest.call('DELETE', `/v1/snapshots/${info.tag}`);
  return {
    pauseMs: info.pause_ms!,
    gapMs: measured.gapMs,
    baselineGapMs,
    returnMs,
    readyMs,
    dirtyBytes: info.diff_logical_bytes!,
    physicalBytes: info.diff_physical_bytes!,
  };
}

async function firstEval(rest: RestClient, id: string, mode: Mode): Promise<number> {
  const since = performance.now();
  const { tag } = (await branch(rest, id, mode, true)).info;
  const child = await spawn(rest, tag);
  await evaluate(rest, child, '1 + 1');
  const firstEvalMs = performance.now() - since;
  await rest.call('DELETE', `/v1/sandboxes/${child}`);
  await rest.call('DELETE', `/v1/snapshots/${tag}`);
  return firstEvalMs;
}

async function branch(rest: RestClient, id: string, mode: Mode, wait: boolean) {
  const since = performance.now();
  let info = await rest.call<SnapshotInfo>('POST', `/v1/sandboxes/${id}/branch`, { mode, wait });
  const returnMs = performance.now() - since;
  if (info.status === 'writing') await written(rest, info.tag);
  const readyMs = performance.now() - since;
  if (info.status === 'writing') info = await rest.call<SnapshotInfo>('GET', `/v1/snapshots/${info.tag}`);
  if (info.status !== 'ready') throw new Error(`${info.tag} is ${info.status}: ${info.warning}`);
  return { info, returnMs, readyMs };
}

/** Told by an event: asking again and again would take the time that the guest misses then. */
async function written(rest: RestClient, tag: string): Promise<void> {
  await new Promise<void>((resolve) => {
    const path = `/v1/events?since=0&types=branched,deleted&snapshot_tag=${tag}`;
    const events = rest.stream(path, undefined, (piece) => {
      if (!piece.includes('"snapshot_tag"')) return;
      events.end();
      resolve();
    });
  });
}

async function withTicks<T>(rest: RestClient, id: string, use: (ticks: Ticks) => Promise<T>): Promise<T> {
  using ticks = await Ticks.start(rest, id);
  return await use(ticks);
}

/** All of them are kept until the last. */
async function inARow(rest: RestClient): Promise<number[]> {
  const id = await spawn(rest, LOADS['100'].tag);
  await evaluate(rest, id, hold(LOADS['100'].mib));
  using ticks = await Ticks.start(rest, id);
  const gaps: number[] = [];
  const tags: string[] = [];
  for (let count = 0; count < CONSECUTIVE; count++) {
    const { gapMs, value } = await ticks.during(() => branch(rest, id, 'live', true));
    gaps.push(gapMs);
    tags.push(value.info.tag);
  }
  await rest.call('DELETE', `/v1/sandboxes/${id}`);
  for (const tag of tags) await rest.call('DELETE', `/v1/snapshots/${tag}`);
  return gaps;
}

/** Settles when all of its memory has been written once. */
async function write(rest: RestClient, id: string): Promise<{ end(): void }> {
  const program = { args: ['python3', '-c', WRITER], timeout_secs: 600 };
  return new Promise((resolve) => {
    const stream = rest.stream(`/v1/sandboxes/${id}/exec`, program, () => resolve(stream));
  });
}

async function spawn(rest: RestClient, snapshot_tag: string): Promise<string> {
  const [info] = await rest.call<SandboxInfo[]>('POST', '/v1/sandboxes', { snapshot_tag });
  return info!.id;
}

async function evaluate(rest: RestClient, id: string, code: string): Promise<void> {
  const { error } = await rest.call<EvalResponse>('POST', `/v1/sandboxes/${id}/eval`, { code, timeout_secs: 120 });
  if (error !== null) throw new Error(`${code}: ${error}`);
}

function cells(samples: Sample[]): Record<string, unknown> {
  return Object.fromEntries(
    Object.keys(LOADS).map((load) => [load, cell(samples.filter((sample) => sample.load === load))]),
  );
}

function cell(samples: Sample[]) {
  const of = (field: Exclude<keyof Sample, 'mode' | 'load'>): number[] => samples.map((sample) => sample[field]);
  const median = (field: Parameters<typeof of>[0], digits = 1): number => rounded(percentile(of(field), 0.5), digits);
  return {
    trials: samples.length,
    pause_ms: spread(of('pauseMs')),
    guest_gap_ms: spread(of('gapMs')),
    baseline_gap_ms: spread(of('baselineGapMs')),
    return_ms: median('returnMs'),
    ready_ms: median('readyMs'),
    first_eval_ms: median('firstEvalMs'),
    dirty_bytes: median('dirtyBytes', 0),
    physical_bytes: median('physicalBytes', 0),
  };
}

function spread(values: number[]) {
  const [p50, p90, max] = [percentile(values, 0.5), percentile(values, 0.9), Math.max(...values)];
  return { p50: rounded(p50), p90: rounded(p90), max: rounded(max) };
}

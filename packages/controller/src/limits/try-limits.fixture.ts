import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { HostHelper } from '@forkd/host';
import { type ForkdError, newSandboxId } from '@forkd/protocol';
import { Cgroups } from './cgroups.js';
import { hierarchies } from './hierarchies.js';
import { exitOf, type SandboxExit } from './out-of-memory.js';
import type { SandboxLimits } from './settings.js';

/** A program that is run under limits. */
export interface Trial {
  /** Shell lines that lead up to it. */
  before?: string;
  limits: SandboxLimits;
  command: string;
}

export interface Outcome {
  /** If it was not run: the code of the error, and its cause. */
  refused?: string;
  exit?: SandboxExit;
  ms?: number;
  output?: string;
  /** What its group had in it afterwards, by file. */
  files?: Record<string, string>;
  /** Groups that were there afterwards. */
  left: string[];
}

/**
 * For another kernel than that of the host: tries limits there, with the helper that is beside it, for a program that owns the
 * directory it is given. Takes rounds of trials from its input; those of one round are run at the same time.
 */
const [own = ''] = process.argv.slice(2);
const rounds: Trial[][] = JSON.parse(readFileSync(0, 'utf8'));
const cgroups = new Cgroups(own);
const reach = { within: [own], read: ['/bin/sh'] };
const helper = HostHelper.start(own, reach, new URL('forkd-host-helper', import.meta.url).pathname);
const outcomes: Outcome[][] = [];
for (const round of rounds) outcomes.push(await Promise.all(round.map(attempt)));
await cgroups.sweep(new Set());
await helper[Symbol.asyncDispose]();
console.log(JSON.stringify({ hierarchies: hierarchies(), outcomes }));

async function attempt({ before = '', limits, command }: Trial): Promise<Outcome> {
  const place = newSandboxId();
  execFileSync('sh', ['-ec', before]);
  try {
    const groups = await cgroups.make(place, limits);
    const outcome = await run(place, groups, limits, command);
    await cgroups.remove(place);
    return { ...outcome, left: groups.filter(existsSync) };
  } catch (thrown) {
    const { code, cause } = thrown as ForkdError;
    return { refused: `${code}: ${(cause as Error).message}`, left: leftOf(place) };
  }
}

async function run(
  place: string,
  groups: string[],
  limits: SandboxLimits,
  command: string,
): Promise<Omit<Outcome, 'left'>> {
  const log = `${own}/${place}.log`;
  const spec = {
    argv: ['/bin/sh', '-c', command],
    env: { PATH: '/usr/bin:/bin' },
    log,
    listen: [],
    open: [],
    rlimits: {},
  };
  const began = performance.now();
  const { exited } = await helper.spawn({ ...spec, tied: true, cgroups: groups });
  const vm = { exited: exited.then((exit) => ({ ...exit, lastWords: '' })) };
  const exit = await exitOf(cgroups, vm, place, limits.memory_limit_mib ?? null);
  const ms = performance.now() - began;
  return { exit, ms, output: readFileSync(log, 'utf8'), files: filesIn(groups) };
}

function filesIn(groups: string[]): Record<string, string> {
  const named = groups.flatMap((group) => readdirSync(group).map((name) => [name, `${group}/${name}`] as const));
  const limits = named.filter(([name]) => /\.(max|weight|events|stat)$/.test(name));
  return Object.fromEntries(limits.map(([name, path]) => [name, readFileSync(path, 'utf8').trim()]));
}

function leftOf(place: string): string[] {
  return hierarchies().flatMap(({ path }) =>
    readdirSync(path, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith(place)),
  );
}

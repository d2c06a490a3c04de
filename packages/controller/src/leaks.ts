import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { nameOf } from './limits/cgroups.js';
import { hierarchies } from './limits/hierarchies.js';
import { processesUsing } from './processes.js';

/** What a finished program must not leave behind under a data directory. */
export interface Leaks {
  processes: number[];
  mounts: string[];
  /** Unix sockets that somebody still has bound there. */
  sockets: string[];
  /** Directories of programs, and what is left in the daemon's. */
  run: string[];
  /** Of the daemon's sandboxes. */
  cgroups: string[];
}

/** Looks for what other programs still use under `root`, and for what they have left there. */
export function leaks(root: string): Leaks {
  const lines = (file: string): string[] => readFileSync(file, 'utf8').split('\n');
  const entries = (path: string): string[] => (existsSync(path) ? readdirSync(path) : []);
  const run = entries(`${root}/run`).filter((name) => name !== 'daemon' && !name.startsWith(`${process.pid}-`));
  return {
    processes: processesUsing(root),
    mounts: lines('/proc/self/mounts').filter((line) => line.includes(` ${root}/`)),
    sockets: lines('/proc/net/unix').filter((line) => line.includes(` ${root}/`)),
    run: [...run, ...entries(`${root}/run/daemon`).map((name) => `daemon/${name}`)],
    cgroups: existsSync(`${root}/run/daemon`)
      ? hierarchies().flatMap(({ path }) =>
          entries(`${path}/${nameOf(`${root}/run/daemon`)}`).filter((name) => name.startsWith('sb-')),
        )
      : [],
  };
}

export const NO_LEAKS: Leaks = { processes: [], mounts: [], sockets: [], run: [], cgroups: [] };

import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';

/** What a finished program must not leave behind under a data directory. */
export interface Leaks {
  processes: string[];
  mounts: string[];
  /** Unix sockets that somebody still has bound there. */
  sockets: string[];
  /** Directories of programs. */
  run: string[];
}

/** Looks for what other programs still use under `root`, and for what they have left there. */
export function leaks(root: string): Leaks {
  const processes = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .filter((pid) => uses(pid, root));
  const lines = (file: string): string[] => readFileSync(file, 'utf8').split('\n');
  const run = existsSync(`${root}/run`) ? readdirSync(`${root}/run`) : [];
  return {
    processes,
    mounts: lines('/proc/self/mounts').filter((line) => line.includes(` ${root}/`)),
    sockets: lines('/proc/net/unix').filter((line) => line.includes(` ${root}/`)),
    run: run.filter((name) => !name.startsWith(`${process.pid}-`)),
  };
}

export const NO_LEAKS: Leaks = { processes: [], mounts: [], sockets: [], run: [] };

function uses(pid: string, root: string): boolean {
  try {
    if (readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(`${root}/`)) return true;
    return readdirSync(`/proc/${pid}/fd`).some((fd) => readlinkSync(`/proc/${pid}/fd/${fd}`).startsWith(`${root}/`));
  } catch {
    return false;
  }
}

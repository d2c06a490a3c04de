import { readdirSync, readFileSync, readlinkSync } from 'node:fs';

/** What a finished program must not leave behind under a data directory. */
export interface Leaks {
  processes: string[];
  mounts: string[];
  run: string[];
}

/** Looks for processes that have something under `root` open or named, for mounts there, and for directories of its runs. */
export function leaks(root: string): Leaks {
  const processes = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .filter((pid) => uses(pid, root));
  const mounts = readFileSync('/proc/self/mounts', 'utf8')
    .split('\n')
    .filter((line) => line.includes(`${root}/`));
  return { processes, mounts, run: readdirSync(`${root}/run`).filter((name) => !name.startsWith(`${process.pid}-`)) };
}

function uses(pid: string, root: string): boolean {
  try {
    if (readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(`${root}/`)) return true;
    return readdirSync(`/proc/${pid}/fd`).some((fd) => readlinkSync(`/proc/${pid}/fd/${fd}`).startsWith(`${root}/`));
  } catch {
    return false;
  }
}

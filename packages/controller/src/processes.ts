import { readdirSync, readFileSync, readlinkSync } from 'node:fs';

/** Field 22 of /proc/PID/stat, which with the pid names a process for ever; `undefined` when there is no such process. */
export function startTime(pid: number): number | undefined {
  const fields = stat(pid);
  return fields && Number(fields[19]);
}

/** Whether it still runs: one that waits to be collected does not. */
export function runs(pid: number): boolean {
  return !['Z', 'X', undefined].includes(stat(pid)?.[0]);
}

/** Every process that names a file below `directory` on its command line or has one open. */
export function processesUsing(directory: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => pid !== process.pid && uses(pid, directory));
}

/** The path of its executable; empty when it is gone or not ours to see. */
export function executable(pid: number): string {
  try {
    const path = readlinkSync(`/proc/${pid}/exe`);
    // A forked VMM's was mounted where the original was, and has lost its path with it. Its name the VMM cannot change.
    return path === '/' ? readFileSync(`/proc/${pid}/comm`, 'utf8').trim() : path;
  } catch {
    return '';
  }
}

function uses(pid: number, directory: string): boolean {
  try {
    const argv = readFileSync(`/proc/${pid}/cmdline`, 'utf8');
    if (argv.includes(`${directory}/`) || argv.split('\0').includes(directory)) return true;
    return readdirSync(`/proc/${pid}/fd`).some((fd) =>
      readlinkSync(`/proc/${pid}/fd/${fd}`).startsWith(`${directory}/`),
    );
  } catch {
    return false;
  }
}

/** From the state on, after the name, which may hold anything. */
function stat(pid: number): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return text.slice(text.lastIndexOf(')') + 2).split(' ');
  } catch {
    return undefined;
  }
}

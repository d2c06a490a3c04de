import { readdirSync, readFileSync } from 'node:fs';

const WINDOW_MS = 50;
/** Share of one core below which a VMM counts as idle: an idle guest stays well under it. */
const IDLE = 0.1;
/** A guest with work of its own (a browser, a server) never gets idle, and that is fine. */
const PATIENCE_MS = 3_000;

/** Waits until the guest has nothing left to do, so that a snapshot does not make every child finish the parent's chores. */
export async function untilQuiet(pid: number, signal: AbortSignal): Promise<void> {
  for (const deadline = Date.now() + PATIENCE_MS; Date.now() < deadline; ) {
    const before = cpuMs(pid);
    const start = performance.now();
    await new Promise((resolve) => setTimeout(resolve, WINDOW_MS));
    signal.throwIfAborted();
    if (cpuMs(pid) - before < IDLE * (performance.now() - start)) return;
  }
}

/** CPU time the living threads of a process have used so far; clock ticks would be too coarse for a window this short. */
export function cpuMs(pid: number): number {
  const threads = readdirSync(`/proc/${pid}/task`);
  const nanoseconds = threads.map((tid) => readFileSync(`/proc/${pid}/task/${tid}/schedstat`, 'utf8').split(' ')[0]);
  return nanoseconds.reduce((sum, used) => sum + Number(used), 0) / 1e6;
}

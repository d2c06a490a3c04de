import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { afterAll } from 'vitest';
import type { SpawnSpec } from './helper-protocol.js';

export function temporaryDirectory(): string {
  const path = mkdtempSync(`${tmpdir()}/forkd-host-`);
  afterAll(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** A process with nothing special about it; tests say what is. */
export function spawnSpec(log: string, argv: string[], changes: Partial<SpawnSpec> = {}): SpawnSpec {
  const env = { PATH: '/usr/bin:/bin' };
  return { argv, env, log, listen: [], open: [], tied: true, rlimits: {}, cgroups: [], ...changes };
}

/** A zombie has ended too: whoever it was handed to has not collected it yet. */
export function isAlive(pid: number): boolean {
  if (!existsSync(`/proc/${pid}/stat`)) return false;
  return !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
}

export async function gone(pid: number, withinMs: number): Promise<boolean> {
  for (const deadline = Date.now() + withinMs; Date.now() < deadline; )
    if (!isAlive(pid)) return true;
    else await new Promise((resolve) => setTimeout(resolve, 10));
  return !isAlive(pid);
}

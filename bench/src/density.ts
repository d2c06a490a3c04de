import { mkdir, writeFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { cpuMs, hostMemory } from '@forkd/controller';
import type { SandboxInfo } from '@forkd/protocol';
import { readArguments } from './arguments.js';
import { endProgress, showProgress } from './progress-line.js';
import type { RestClient } from './rest-client.js';
import { resultsDirectory } from './results.js';
import { rounded } from './statistics.js';
import { withDaemon } from './with-daemon.js';

const BUDGET_MIB = 8 * 1024;
const BATCH = 50;
/** Where the processors are exhausted before the memory is, what is there after this long is what fits. */
const LIMIT_MS = 600_000;
const SETTLE_MS = 10_000;
const WINDOW_MS = 10_000;

interface Step {
  children: number;
  usedMib: number;
  ms: number;
}

const { recipe } = readArguments();
// What is measured is what they take, not how many a daemon would allow.
process.env.FORKD_OVERCOMMIT = '0';

await withDaemon(async (rest) => {
  showProgress({ step: 'snapshot', detail: recipe });
  await rest.call('POST', '/v1/snapshots', { tag: 'dense', recipe });
  // The zygote belongs to the snapshot, not to its children.
  const [first] = await rest.call<SandboxInfo[]>('POST', '/v1/sandboxes', { snapshot_tag: 'dense' });
  await rest.call('DELETE', `/v1/sandboxes/${first!.id}`);
  const before = hostMemory().available;
  const { steps, pids, ended } = await fill(rest, before);

  showProgress({ step: 'idle', detail: `watching ${pids.length} idle children` });
  await sleep(SETTLE_MS);
  const usedMib = before - hostMemory().available;
  const cpu = pids.map(cpuMs);
  const since = performance.now();
  await sleep(WINDOW_MS);
  const elapsed = performance.now() - since;
  const idle = pids.map((pid, index) => (cpuMs(pid) - cpu[index]!) / elapsed);
  endProgress();

  const summary = {
    children: pids.length,
    mib_per_child: rounded(usedMib / pids.length, 2),
    idle_cpu_pct: rounded((100 * idle.reduce((sum, share) => sum + share, 0)) / availableParallelism()),
    used_mib: rounded(usedMib),
    cores: availableParallelism(),
    ended,
  };
  await mkdir(resultsDirectory(), { recursive: true });
  const raw = JSON.stringify({ summary, recipe, steps, idle });
  await writeFile(join(resultsDirectory(), `density-${recipe}-${Date.now()}.json`), raw);
  console.log(JSON.stringify(summary));
});

/** Until the memory is used up, the daemon refuses, or it takes too long: whichever comes first is told. */
async function fill(rest: RestClient, before: number): Promise<{ steps: Step[]; pids: number[]; ended: string }> {
  const steps: Step[] = [];
  const pids: number[] = [];
  const since = performance.now();
  for (;;) {
    const began = performance.now();
    try {
      const born = await rest.call<SandboxInfo[]>('POST', '/v1/sandboxes', { snapshot_tag: 'dense', n: BATCH });
      pids.push(...born.map(({ pid }) => pid!));
    } catch (refused) {
      if (pids.length === 0) throw refused;
      return { steps, pids, ended: `refused: ${(refused as Error).message}` };
    }
    const usedMib = before - hostMemory().available;
    steps.push({ children: pids.length, usedMib, ms: performance.now() - began });
    showProgress({ step: 'spawn', detail: `${pids.length} children`, fraction: Math.min(1, usedMib / BUDGET_MIB) });
    if (usedMib + (usedMib / pids.length) * BATCH > BUDGET_MIB) return { steps, pids, ended: 'memory' };
    if (performance.now() - since > LIMIT_MS) return { steps, pids, ended: 'time' };
  }
}

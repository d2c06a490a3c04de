import { readdirSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { basename } from 'node:path';
import { ForkdError } from '@forkd/protocol';
import { now } from './clock.js';
import { outOfMemory } from './limits/out-of-memory.js';
import type { Parts } from './parts.js';
import { executable, processesUsing, runs, startTime } from './processes.js';
import { type Keeper, Sandbox } from './sandbox.js';
import type { SandboxRecord } from './store/records.js';

/** A process that was killed is gone by then, also on a host that is swapping. */
const DEATH_MS = 10_000;

/**
 * After a program that ended at any point: takes over every sandbox that is whole, ends all other VMs, removes all other
 * directories, and leaves a record only of what somebody may still ask about.
 */
export async function recover(parts: Parts, keeper: Keeper): Promise<Sandbox[]> {
  const { data, engine, store, helper } = parts;
  // Before all else: while it lives, the helper of the program before may still be making VMs.
  const isHelper = (pid: number): boolean => basename(executable(pid)) === 'forkd-host-helper';
  await end(processesUsing(data.own).filter((pid) => pid !== helper.pid && isHelper(pid)));

  // Whoever made a request that was never answered makes it again.
  const unanswered = new Set(store.takeUnfinished().map(({ owner, key }) => `${owner} ${key}`));
  const whole = store
    .sandboxes({ states: ['running', 'paused'] })
    .filter((record) => alive(record) && !unanswered.has(`${record.owner} ${record.request_key}`));
  const ours = new Set(whole.map(({ pid }) => pid));
  await end(processesUsing(data.own).filter((pid) => !ours.has(pid) && engine.runs(executable(pid))));
  const kept = new Set(whole.map(({ place }) => place));
  for (const name of readdirSync(data.own))
    if (!kept.has(name)) await rm(`${data.own}/${name}`, { recursive: true, force: true });

  const starved = new Set<string>();
  for (const { id, place, memory_limit_mib } of store.sandboxes({ states: ['running', 'paused'] }))
    if (memory_limit_mib !== null && !kept.has(place) && (await parts.cgroups.ranOutOfMemory(place))) starved.add(id);
  await parts.cgroups.sweep(kept);
  const adopted = await Promise.all(whole.map((record) => Sandbox.adopt(parts, record, keeper).catch(() => undefined)));
  const sandboxes = adopted.filter((sandbox) => sandbox !== undefined);
  settle(parts, new Set(sandboxes.map(({ id }) => id)), starved);
  return sandboxes;
}

/** What nobody was told of is forgotten; what somebody may wait for is remembered as ended. */
function settle({ store, events }: Parts, adopted: Set<string>, starved: Set<string>): void {
  const lost = store
    .sandboxes({ states: ['starting', 'running', 'paused', 'stopping'] })
    .filter(({ id }) => !adopted.has(id));
  const why = ({ id, memory_limit_mib }: SandboxRecord): string =>
    starved.has(id) ? outOfMemory(memory_limit_mib!) : 'the VM ended while forkd was not running';
  store.together(() => {
    for (const record of lost)
      if (record.state === 'starting' || record.state === 'stopping') store.removeSandbox(record.id);
      else store.moveSandbox(record.id, 'exited', { ended_at: now(), exit_reason: why(record) });
  });
  for (const record of lost) {
    const { id, state, owner, snapshot_tag } = record;
    if (state === 'running' || state === 'paused')
      events.tell('crashed', { owner, sandbox_id: id, snapshot_tag, message: why(record) });
  }
}

function alive({ pid, start_time }: SandboxRecord): boolean {
  return pid !== null && runs(pid) && startTime(pid) === start_time;
}

async function end(pids: number[]): Promise<void> {
  for (const pid of pids)
    try {
      process.kill(pid, 'SIGKILL');
    } catch {
      // Gone already.
    }
  for (const deadline = Date.now() + DEATH_MS; pids.some(runs); ) {
    if (Date.now() > deadline)
      throw new ForkdError('host_unfit', `processes of an earlier daemon do not die: ${pids.filter(runs).join(', ')}`, {
        hint: 'See what they wait for (ps -o pid,stat,wchan), then start again.',
      });
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

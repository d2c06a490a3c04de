import { ForkdError } from '@forkd/protocol';
import { about } from './about.js';
import type { Parts } from './parts.js';
import type { Sandbox } from './sandbox.js';
import type { Sandboxes } from './sandboxes.js';
import type { SandboxRecord } from './store/records.js';
import type { Store } from './store/store.js';

/** A child takes the id of the sandbox it was forked from, whose VM ends if it still runs. */
export async function promote(
  { store, events }: Parts,
  sandboxes: Sandboxes,
  id: string,
  given?: AbortSignal,
): Promise<SandboxRecord> {
  const child = sandboxes.running(id);
  const to = promotesTo(store, child);
  const source = sandboxes.current(to);
  return sandboxes.alone([id, to], 'being promoted', given, async (signal) => {
    const { env, budget: own } = sandboxes.record(id);
    // It is as far from the first of its line as the one whose place it takes.
    const level = child.snapshot.budget?.level;
    const budget = own && level !== undefined ? { ...own, level } : own;
    let record: SandboxRecord;
    try {
      await child.rename(to, env, signal);
      signal.throwIfAborted();
      // From here until the living are told nothing else runs.
      if (sandboxes.current(to) !== source) promotesTo(store, child);
      record = store.promoteSandbox(id, to, { budget });
    } catch (thrown) {
      await child.rename(id, env).catch(() => {});
      throw thrown;
    }
    sandboxes.rename(child, to);
    source?.guest.close(new ForkdError('state_conflict', `sandbox ${to} was replaced by its child ${id}`));
    await source?.stop();
    events.tell('promoted', { ...about(child), message: `it was ${id}` });
    return record;
  });
}

/** The id it may take. */
function promotesTo(store: Store, { id, snapshot }: Sandbox): string {
  const to = snapshot.branch?.sandbox;
  if (to === undefined || to === id)
    throw new ForkdError('state_conflict', `sandbox ${id} was not forked from another sandbox`, {
      hint: 'Only a child of a branch can be promoted.',
    });
  const workspace = store.workspaces().find(({ sandbox_id }) => sandbox_id === id);
  if (workspace)
    throw new ForkdError('state_conflict', `sandbox ${id} belongs to workspace ${workspace.name}`, {
      hint: 'Fork it, and promote the child.',
    });
  const state = store.sandbox(to)?.state;
  if (state === 'starting' || state === 'stopping')
    throw new ForkdError('state_conflict', `sandbox ${to} is ${state}`, { details: { state } });
  return to;
}

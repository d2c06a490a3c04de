import { ForkdError, type Limits, newSandboxId } from '@forkd/protocol';
import { now } from './clock.js';
import type { Parts } from './parts.js';
import type { Sandboxes } from './sandboxes.js';
import type { Snapshots } from './snapshots.js';
import type { NetworkWish } from './spawn-options.js';
import type { WorkspaceRecord } from './store/records.js';

export interface NewWorkspace {
  name: string;
  snapshotTag: string;
  owner: string;
  memoryLimitMib?: number | null | undefined;
  limits?: Limits;
  env?: Record<string, string>;
  guestBranch?: boolean | undefined;
  network?: NetworkWish | undefined;
}

/** Named sandboxes that can be put away and taken out again with all they had in mind. */
export class Workspaces {
  /** Those something is being done to: one thing at a time. */
  readonly #busy = new Set<string>();

  constructor(
    private readonly parts: Parts,
    private readonly sandboxes: Sandboxes,
    private readonly snapshots: Snapshots,
  ) {}

  /** After a program that ended at any point: what is not a workspace's yet, or not any more, is nobody's. */
  async recover(): Promise<void> {
    const { store } = this.parts;
    for (const { name, status, sandbox_id, state_tag, spare_tag } of this.list()) {
      const isOver = status !== 'running' && sandbox_id !== null;
      // Before the state that it came from, which would be in use.
      if (isOver && store.sandbox(sandbox_id)) await this.sandboxes.kill(sandbox_id);
      if (spare_tag !== null) await this.#forget(name, spare_tag);
      if (!isOver) continue;
      if (status === 'stale' && state_tag === null) store.removeWorkspace(name);
      else store.changeWorkspace(name, { sandbox_id: null });
    }
  }

  /** One whose sandbox was lost has its last saved state, if it has one. */
  #reconcile(): void {
    const { store } = this.parts;
    for (const { name, status, sandbox_id } of store.workspaces())
      if (status === 'running' && !['running', 'paused'].includes(store.sandbox(sandbox_id ?? '')?.state ?? ''))
        store.changeWorkspace(name, { status: 'stale', sandbox_id: null });
  }

  get(name: string): WorkspaceRecord {
    this.#reconcile();
    const record = this.parts.store.workspace(name);
    if (!record) throw new ForkdError('workspace_not_found', `there is no workspace ${JSON.stringify(name)}`);
    return record;
  }

  list(): WorkspaceRecord[] {
    this.#reconcile();
    return this.parts.store.workspaces();
  }

  create({
    name,
    snapshotTag,
    owner,
    memoryLimitMib = null,
    limits = {},
    env = {},
    guestBranch,
    network,
  }: NewWorkspace): Promise<WorkspaceRecord> {
    return this.#alone(name, async () => {
      const { store } = this.parts;
      const at = now();
      store.addWorkspace({
        name,
        owner,
        source_tag: snapshotTag,
        state_tag: null,
        spare_tag: null,
        status: 'stale',
        sandbox_id: null,
        memory_limit_mib: memoryLimitMib,
        limits,
        env,
        created_at: at,
        last_active: at,
      });
      try {
        return await this.#start(name, snapshotTag, { guestBranch, network });
      } catch (thrown) {
        store.removeWorkspace(name);
        throw thrown;
      }
    });
  }

  /** The state before is kept until the new one is whole. */
  suspend(name: string): Promise<WorkspaceRecord> {
    return this.#alone(name, async () => {
      const { store } = this.parts;
      const { status, sandbox_id, state_tag, owner } = this.get(name);
      if (status !== 'running' || sandbox_id === null) throw conflict(name, status, 'running');
      const tag = `ws-${name.slice(0, 40)}-${Date.now().toString(36)}`;
      store.changeWorkspace(name, { spare_tag: tag });
      try {
        await this.sandboxes.branch(sandbox_id, { tag, mode: 'live', owner }).done;
      } catch (thrown) {
        store.changeWorkspace(name, { spare_tag: null });
        throw thrown;
      }
      const saved = { state_tag: tag, spare_tag: state_tag, last_active: now() } as const;
      store.changeWorkspace(name, { status: 'suspended', ...saved });
      await this.sandboxes.kill(sandbox_id);
      if (state_tag !== null) await this.#forget(name, state_tag);
      return store.changeWorkspace(name, { sandbox_id: null });
    });
  }

  resume(name: string): Promise<WorkspaceRecord> {
    return this.#alone(name, async () => {
      const { status, state_tag } = this.get(name);
      if (status === 'running' || state_tag === null) throw conflict(name, status, 'suspended');
      return this.#start(name, state_tag);
    });
  }

  delete(name: string): Promise<void> {
    return this.#alone(name, async () => {
      const { sandbox_id, state_tag } = this.get(name);
      if (sandbox_id !== null) await this.sandboxes.kill(sandbox_id);
      if (state_tag !== null) await this.#forget(name, state_tag);
      this.parts.store.removeWorkspace(name);
    });
  }

  /** What is `given` is in the saved state from then on. */
  async #start(name: string, tag: string, given: Pick<NewWorkspace, 'guestBranch' | 'network'> = {}) {
    const { owner, memory_limit_mib: memoryLimitMib, limits, env, state_tag } = this.get(name);
    const { store } = this.parts;
    const sandbox_id = newSandboxId();
    store.changeWorkspace(name, { sandbox_id });
    const ids = [sandbox_id];
    const more = { metadata: { workspace: name }, continues: tag === state_tag, ...given };
    try {
      const [result] = await this.sandboxes.spawn({ tag, n: 1, ids, owner, memoryLimitMib, limits, env, ...more });
      if (!result?.ok) throw result?.error ?? new ForkdError('internal', 'nothing was spawned');
    } catch (thrown) {
      store.changeWorkspace(name, { sandbox_id: null });
      throw thrown;
    }
    return store.changeWorkspace(name, { status: 'running', last_active: now() });
  }

  /** One that somebody else has spawned from, or removed, is theirs. */
  async #forget(name: string, tag: string): Promise<void> {
    const usersOf = (of: string): number => this.sandboxes.usersOf(of);
    await this.snapshots.remove(tag, usersOf, { force: true }).catch(() => {});
    this.parts.store.changeWorkspace(name, { spare_tag: null });
  }

  async #alone<T>(name: string, work: () => Promise<T>): Promise<T> {
    if (this.#busy.has(name))
      throw new ForkdError('state_conflict', `workspace ${name} is being changed by another request`);
    this.#busy.add(name);
    try {
      return await work();
    } finally {
      this.#busy.delete(name);
    }
  }
}

function conflict(name: string, status: string, needed: string): ForkdError {
  return new ForkdError('state_conflict', `workspace ${name} is ${status}, not ${needed}`, {
    details: { state: status },
    hint: needed === 'running' ? 'Resume it first.' : 'Only a suspended workspace can be resumed.',
  });
}

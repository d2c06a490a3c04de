import { ForkdError } from '@forkd/protocol';
import type { Sandbox } from './sandbox.js';
import type { SandboxRecord } from './store/records.js';
import type { Store } from './store/store.js';

const AGAIN = 'Wait until that is done and try again.';

/** Why a sandbox that was asked to end was. */
export type Order = 'killed' | 'expired';

interface Live {
  sandbox: Sandbox;
  /** When its end has been written down. */
  settled: Promise<void>;
}

/** Those that have not ended, and what is being done to them. */
export class LiveSandboxes {
  readonly #live = new Map<string, Live>();
  readonly #orders = new Map<string, Order>();
  /** What is being done to those that others must leave alone meanwhile. */
  readonly #changes = new Map<string, { what: string; stop: AbortController }>();

  constructor(private readonly store: Store) {}

  add(live: Live): void {
    this.#live.set(live.sandbox.id, live);
  }

  forget(id: string): void {
    this.#live.delete(id);
    this.#orders.delete(id);
  }

  find(id: string): Live | undefined {
    return this.#live.get(id);
  }

  all(): Sandbox[] {
    return [...this.#live.values()].map(({ sandbox }) => sandbox);
  }

  /** The one that has an id now, unless it has ended. */
  current(id: string): Sandbox | undefined {
    return this.#live.get(id)?.sandbox;
  }

  /** One that has not ended. */
  get(id: string): Sandbox {
    const sandbox = this.current(id);
    if (sandbox) return sandbox;
    const { state, exit_reason } = this.record(id);
    throw new ForkdError('state_conflict', `sandbox ${id} is ${state}${exit_reason ? `: ${exit_reason}` : ''}`, {
      details: { state },
      hint: state === 'exited' ? 'Spawn another one.' : 'Wait until it is running.',
    });
  }

  /** One that nobody else is changing. */
  free(id: string): Sandbox {
    const sandbox = this.get(id);
    this.#checkFree(id);
    return sandbox;
  }

  /** One whose guest can be talked to. */
  running(id: string): Sandbox {
    const sandbox = this.get(id);
    const change = this.#changes.get(id)?.what;
    const state = this.#orders.has(id) ? 'stopping' : (change ?? (sandbox.paused ? 'paused' : 'running'));
    if (state === 'running') return sandbox;
    throw new ForkdError('state_conflict', `sandbox ${id} is ${state}`, {
      details: { state },
      hint: change ? AGAIN : state === 'paused' ? 'Resume it first.' : 'It is about to end; spawn another one.',
    });
  }

  record(id: string): SandboxRecord {
    const record = this.store.sandbox(id);
    if (!record) throw new ForkdError('sandbox_not_found', `there is no sandbox ${JSON.stringify(id)}`);
    return record;
  }

  /** One takes the id of another, which is nobody's any more; their records say so already. */
  rename(sandbox: Sandbox, to: string): void {
    const entry = this.#live.get(sandbox.id)!;
    this.#live.delete(sandbox.id);
    this.#live.set(to, entry);
    sandbox.id = to;
  }

  /** Until what is returned is called, others leave them alone; who ends one of them aborts `stop`. */
  change(ids: string[], what: string, stop: AbortController): () => void {
    for (const id of ids) this.#checkFree(id);
    for (const id of ids) this.#changes.set(id, { what, stop });
    return () => {
      for (const id of ids) this.#changes.delete(id);
    };
  }

  orderOf(id: string): Order | undefined {
    return this.#orders.get(id);
  }

  /** It is to end, and so is what is being done to it. */
  order(id: string, order: Order): void {
    this.#orders.set(id, order);
    this.#changes.get(id)?.stop.abort(new ForkdError('cancelled', `sandbox ${id} is being ended`));
  }

  #checkFree(id: string): void {
    const state = this.#orders.has(id) ? 'stopping' : this.#changes.get(id)?.what;
    if (state === undefined) return;
    throw new ForkdError('state_conflict', `sandbox ${id} is ${state}`, { details: { state }, hint: AGAIN });
  }
}

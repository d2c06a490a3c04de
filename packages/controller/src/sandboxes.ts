import { type EgressRules, ForkdError, type NetworkPolicy } from '@forkd/protocol';
import { about } from './about.js';
import { Births } from './births.js';
import { Branches, type Branching } from './branches.js';
import { checkForks } from './budget.js';
import { guarded } from './cancel.js';
import { now } from './clock.js';
import { Endings } from './endings.js';
import { LiveSandboxes } from './live-sandboxes.js';
import type { Parts } from './parts.js';
import { checkCeiling, checkWire } from './policy.js';
import type { Keeper, Sandbox } from './sandbox.js';
import type { SnapshotInMaking, Snapshots } from './snapshots.js';
import type { Sources } from './sources.js';
import type { Forked, Forking, SpawnOptions, SpawnResult } from './spawn-options.js';
import { Journal } from './store/journal.js';
import type { SandboxRecord } from './store/records.js';
import { type GuestFork, hearWishes } from './wishes.js';

/** As many as forkd's API ever allowed in one call. */
export const MAX_CHILDREN = 1000;

/** How often those whose time is up are looked for. */
const SWEEP_MS = 1_000;

/** The running sandboxes, and the records of all. */
export class Sandboxes implements Keeper {
  readonly #live: LiveSandboxes;
  readonly #births: Births;
  readonly #branches: Branches;
  readonly #endings: Endings;
  readonly #working = new Set<Promise<unknown>>();
  readonly #closing = new AbortController();
  readonly #sweeper = setInterval(() => this.#endings.sweep(), SWEEP_MS).unref();

  constructor(
    private readonly parts: Parts,
    private readonly snapshots: Snapshots,
    sources: Sources,
  ) {
    const journal = new Journal(parts.store);
    this.#live = new LiveSandboxes(parts.store);
    this.#births = new Births(parts, sources, journal, this);
    this.#branches = new Branches(parts, snapshots, this.#live, sources);
    this.#endings = new Endings(parts, this.#live, journal);
  }

  spawn(options: SpawnOptions): Promise<SpawnResult[]> {
    const { n } = options;
    const signal = AbortSignal.any([this.#closing.signal, ...(options.signal ? [options.signal] : [])]);
    const spawned = this.snapshots.using(options.tag, async (snapshot) => {
      if (!Number.isInteger(n) || n < 1 || n > MAX_CHILDREN)
        throw new ForkdError('invalid_request', `n is 1 to ${MAX_CHILDREN}, not ${n}`);
      return guarded(signal, () => this.#births.spawn(snapshot, { ...options, signal }));
    });
    return this.#finishing(spawned);
  }

  /** The branch stays, also when no child could be started. */
  async fork(id: string, { tag, ...options }: Forking): Promise<Forked> {
    const { n, owner, signal } = options;
    // Before something is done for children that may not be.
    if (n > 0) checkForks(this.parts.store, this.record(id).budget, n);
    const { record, done } = this.branch(id, { tag, mode: 'live', owner, ...(signal && { signal }) });
    await done;
    return { tag: record.tag, results: n > 0 ? await this.spawn({ ...options, tag: record.tag }) : [] };
  }

  branch(id: string, options: Branching): SnapshotInMaking & { resumed: Promise<number> } {
    return this.#branches.begin(id, options);
  }

  /** How many branches are being made. */
  get branching(): number {
    return this.#branches.making;
  }

  /** One thing at a time is done to a sandbox; who ends it, or the program, ends this too. */
  alone<T>(
    ids: string[],
    what: string,
    given: AbortSignal | undefined,
    work: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    const stop = new AbortController();
    const done = this.#live.change(ids, what, stop);
    const signal = AbortSignal.any([this.#closing.signal, stop.signal, ...(given ? [given] : [])]);
    return this.#finishing(guarded(signal, () => work(signal)).finally(done));
  }

  /** Not to be left half done when the program ends. */
  #finishing<T>(work: Promise<T>): Promise<T> {
    this.#working.add(work);
    const settled = (): boolean => this.#working.delete(work);
    work.then(settled, settled);
    return work;
  }

  /** Looks after a sandbox from here on. */
  own(sandbox: Sandbox): void {
    const settled = sandbox.exited.then((exit) => this.#endings.ended(sandbox, exit));
    // The record of an end that could not be written is made up for at the next start.
    settled.catch(() => {});
    this.#live.add({ sandbox, settled });
    this.#hear(sandbox);
  }

  #hear(sandbox: Sandbox): void {
    if (sandbox.guestBranch) void hearWishes(sandbox, (wish, signal) => this.#fulfil(sandbox, wish, signal));
  }

  /** Its children have no more than it has itself, and live no longer. */
  #fulfil({ id, owner }: Sandbox, { n, tag }: GuestFork, signal: AbortSignal): Promise<Forked> {
    const { memory_limit_mib: memoryLimitMib, limits, metadata, expires_at } = this.record(id);
    const ttl = expires_at === null ? undefined : Math.max(1, expires_at - now());
    return this.fork(id, { n, tag, owner, metadata, memoryLimitMib, limits, ttl, signal });
  }

  /** One that has not ended. */
  get(id: string): Sandbox {
    return this.#live.get(id);
  }

  /** The one that has an id now, unless it has ended. */
  current(id: string): Sandbox | undefined {
    return this.#live.current(id);
  }

  /** One takes the id of another, which is nobody's any more; their records say so already. */
  rename(sandbox: Sandbox, to: string): void {
    this.#live.rename(sandbox, to);
  }

  /** One whose guest can be talked to. */
  running(id: string): Sandbox {
    return this.#live.running(id);
  }

  all(): Sandbox[] {
    return this.#live.all();
  }

  /** How many run from a snapshot. */
  usersOf(tag: string): number {
    return this.all().filter(({ snapshot }) => snapshot.tag === tag).length;
  }

  record(id: string): SandboxRecord {
    return this.#live.record(id);
  }

  /** Of one that runs without asking the store: every call into a guest asks for it. */
  ownerOf(id: string): string {
    return this.current(id)?.owner ?? this.record(id).owner;
  }

  kill(id: string): Promise<void> {
    return this.#endings.end(id, 'killed');
  }

  async pause(id: string): Promise<SandboxRecord> {
    return this.#turn(id, 'paused', (sandbox) => sandbox.vm.pause());
  }

  async resume(id: string): Promise<SandboxRecord> {
    return this.#turn(id, 'running', async (sandbox) => {
      const { guest } = sandbox;
      await sandbox.resume();
      if (sandbox.guest !== guest) this.#hear(sandbox);
    });
  }

  /** `ttl`: seconds from now; `null`: it never ends by itself. */
  change(id: string, { ttl, metadata }: { ttl?: number | null; metadata?: Record<string, string> }): SandboxRecord {
    this.get(id);
    return this.parts.store.changeSandbox(id, {
      ...(ttl !== undefined && { expires_at: ttl === null ? null : now() + ttl }),
      ...(metadata !== undefined && { metadata }),
    });
  }

  /** Rules stay as they are where none are given. */
  changeNetwork(
    id: string,
    { policy, rules }: { policy: NetworkPolicy; rules?: EgressRules | undefined },
  ): SandboxRecord {
    const { store } = this.parts;
    const { owner, snapshot } = this.get(id);
    checkWire(snapshot, policy);
    checkCeiling(owner, policy, this.parts.ceilingOf(owner));
    if (rules) store.setRules({ subject: id, owner, rules });
    return store.changeSandbox(id, { policy });
  }

  /** Ends what is tied to this program; leaves the rest running, to be adopted. */
  async close(): Promise<void> {
    clearInterval(this.#sweeper);
    this.#closing.abort(new ForkdError('cancelled', 'forkd is being stopped'));
    await Promise.allSettled(this.#working);
    if (this.parts.data.lasting) for (const sandbox of this.all()) sandbox.leave();
    else await Promise.all(this.all().map(({ id }) => this.kill(id)));
  }

  /** The record first: after a crash it says what the VM is to be. */
  async #turn(
    id: string,
    state: 'running' | 'paused',
    order: (sandbox: Sandbox) => Promise<void>,
  ): Promise<SandboxRecord> {
    const { store, events } = this.parts;
    const sandbox = this.#live.free(id);
    const record = store.moveSandbox(id, state);
    sandbox.paused = state === 'paused';
    try {
      await order(sandbox);
    } catch (thrown) {
      sandbox.paused = !sandbox.paused;
      store.moveSandbox(id, sandbox.paused ? 'paused' : 'running');
      throw thrown;
    }
    events.tell(sandbox.paused ? 'paused' : 'resumed', about(sandbox));
    return record;
  }
}

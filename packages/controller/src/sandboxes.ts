import { statSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { asForkdError, type EgressRules, ForkdError, type NetworkPolicy } from '@forkd/protocol';
import { type BranchOptions, branchSandbox } from './branch.js';
import { checkForks } from './budget.js';
import { guarded } from './cancel.js';
import { now } from './clock.js';
import type { SandboxExit } from './limits/out-of-memory.js';
import { limitsOf } from './limits/settings.js';
import { newRecord } from './new-record.js';
import { inParallel } from './parallel.js';
import type { Parts } from './parts.js';
import { keepRules, policyOf, rulesOf } from './policy.js';
import { type Keeper, Sandbox } from './sandbox.js';
import { checkUsable, type SnapshotMeta, snapshotFiles } from './snapshot.js';
import type { SnapshotInMaking, Snapshots } from './snapshots.js';
import type { Source } from './source.js';
import type { Sources } from './sources.js';
import type { Forked, Forking, SpawnOptions, SpawnResult } from './spawn-options.js';
import { Journal } from './store/journal.js';
import type { SandboxRecord } from './store/records.js';
import { type GuestFork, hearWishes } from './wishes.js';

/** As many as forkd's API ever allowed in one call. */
export const MAX_CHILDREN = 1000;

/** How often those whose time is up are looked for. */
const SWEEP_MS = 1_000;
/** How long one that ended by itself is remembered, with the reason. */
const REMEMBER_SECS = 3_600;

export interface Branching extends Omit<BranchOptions, 'signal' | 'onResumed' | 'report' | 'tag'> {
  /** @default branch-ID-TIME-NUMBER, as forkd names them */
  tag?: string | undefined;
  owner: string;
  rememberFailure?: boolean;
  /** Seconds until it may be removed. */
  ttl?: number | undefined;
  signal?: AbortSignal;
}

/** Why a sandbox that was asked to end was. */
type Order = 'killed' | 'expired';

/** The running sandboxes, and the records of all. */
export class Sandboxes implements Keeper {
  readonly #live = new Map<string, { sandbox: Sandbox; settled: Promise<void> }>();
  readonly #orders = new Map<string, Order>();
  /** What is being done to those that others must leave alone meanwhile. */
  readonly #changes = new Map<string, { what: string; stop: AbortController }>();
  readonly #working = new Set<Promise<unknown>>();
  readonly #closing = new AbortController();
  readonly #journal: Journal;
  #branches = 0;
  /** How many branches are being made. */
  branching = 0;
  readonly #sweeper = setInterval(() => this.#sweep(), SWEEP_MS).unref();

  constructor(
    private readonly parts: Parts,
    private readonly snapshots: Snapshots,
    private readonly sources: Sources,
  ) {
    this.#journal = new Journal(parts.store);
  }

  /** Every sandbox is recorded before it exists, and handed out when the record says that it runs. */
  spawn(options: SpawnOptions): Promise<SpawnResult[]> {
    const { n } = options;
    const signal = AbortSignal.any([this.#closing.signal, ...(options.signal ? [options.signal] : [])]);
    const spawned = this.snapshots.using(options.tag, async (snapshot) => {
      if (!Number.isInteger(n) || n < 1 || n > MAX_CHILDREN)
        throw new ForkdError('invalid_request', `n is 1 to ${MAX_CHILDREN}, not ${n}`);
      return guarded(signal, () => this.#spawn(snapshot, { ...options, signal }));
    });
    return this.#finishing(spawned);
  }

  async #spawn(snapshot: SnapshotMeta, options: SpawnOptions & { signal: AbortSignal }): Promise<SpawnResult[]> {
    const { engine, data, store } = this.parts;
    await checkUsable(data.snapshots, snapshot, engine);
    return this.sources.using(snapshot, options.n, options.signal, (source) => {
      const { size } = statSync(snapshotFiles(`${data.snapshots}/${snapshot.tag}`).upper);
      const policy = policyOf(snapshot, options.network, this.parts.policy);
      const around = { defaults: this.parts.defaults, diskMib: Math.ceil(size / 2 ** 20), policy };
      const records = Array.from({ length: options.n }, (_, index) => newRecord(snapshot, options, index, around));
      options.signal.throwIfAborted();
      if (!options.continues) checkForks(store, snapshot.budget, options.n);
      this.parts.admission.check(records);
      store.addSandboxes(records, rulesOf(store, snapshot, records, options.network));
      return this.#start(records, snapshot, source, options);
    });
  }

  async #start(
    records: SandboxRecord[],
    snapshot: SnapshotMeta,
    source: Source,
    options: SpawnOptions & { signal: AbortSignal },
  ): Promise<SpawnResult[]> {
    const { n: count, width = availableParallelism() + 1, env = {}, cgroups = [], signal } = options;
    const births = await inParallel(count, width, async (index) => {
      const { id, place, owner, guest_branch } = records[index]!;
      const rank = { index, count, limits: limitsOf(records[index]!), guestBranch: guest_branch === 1, cgroups };
      const birth = { id, place, owner, snapshot, source, env, ...rank, keeper: this, signal };
      const started = await settled(guarded(signal, () => Sandbox.start(this.parts, birth)));
      // Not waited for here: while the record of one is being written the next one starts.
      return { result: this.#handOut(id, started, () => started.ok && options.onReady?.(started.sandbox, index)) };
    });
    return Promise.all(births.map(({ result }) => result));
  }

  async #handOut(id: string, started: SpawnResult, ready: () => void): Promise<SpawnResult> {
    const result = started.ok ? await settled(this.#born(started.sandbox)) : started;
    if (result.ok) ready();
    else await this.#journal.write(() => this.parts.store.removeSandbox(id));
    return result;
  }

  async #born(sandbox: Sandbox): Promise<Sandbox> {
    const { store, events } = this.parts;
    const { pid, startTime } = sandbox.vm;
    try {
      const running = { pid, start_time: startTime };
      await this.#journal.write(() => void store.moveSandbox(sandbox.id, 'running', running));
    } catch (thrown) {
      await sandbox.stop();
      throw thrown;
    }
    this.own(sandbox);
    events.tell('spawned', about(sandbox));
    return sandbox;
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
    const sandbox = this.#free(id);
    const number = (this.#branches++).toString(16).padStart(4, '0');
    const tag = options.tag ?? `branch-${id}-${now()}-${number}`;
    let onResumed = (_pauseMs: number): void => {};
    const running = new Promise<number>((resolve) => (onResumed = resolve));
    const { record, done } = this.snapshots.begin({
      ...options,
      tag,
      recipe: sandbox.snapshot.recipe,
      write: async (signal, report) => {
        const { meta, zygote } = await this.snapshots.using(sandbox.snapshot.tag, () =>
          branchSandbox(this.parts, sandbox, { ...options, tag, onResumed, report, signal }),
        );
        if (zygote) this.sources.keep(tag, zygote);
        this.parts.store.countBranch(id, tag);
        keepRules(this.parts.store, id, tag);
        return meta;
      },
    });
    this.branching++;
    done.catch(() => {}).finally(() => this.branching--);
    // A branch that fails before the sandbox runs again fails whoever waits for that.
    const resumed = Promise.race([running, done.then(() => running)]);
    resumed.catch(() => {});
    return { record, done, resumed };
  }

  /** One thing at a time is done to a sandbox; who ends it, or the program, ends this too. */
  alone<T>(
    ids: string[],
    what: string,
    given: AbortSignal | undefined,
    work: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    for (const id of ids) this.#checkFree(id);
    const stop = new AbortController();
    const signal = AbortSignal.any([this.#closing.signal, stop.signal, ...(given ? [given] : [])]);
    for (const id of ids) this.#changes.set(id, { what, stop });
    const done = (): void => {
      for (const id of ids) this.#changes.delete(id);
    };
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
    const settled = sandbox.exited.then((exit) => this.#ended(sandbox, exit));
    // The record of an end that could not be written is made up for at the next start.
    settled.catch(() => {});
    this.#live.set(sandbox.id, { sandbox, settled });
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
    const sandbox = this.current(id);
    if (sandbox) return sandbox;
    const { state, exit_reason } = this.record(id);
    throw new ForkdError('state_conflict', `sandbox ${id} is ${state}${exit_reason ? `: ${exit_reason}` : ''}`, {
      details: { state },
      hint: state === 'exited' ? 'Spawn another one.' : 'Wait until it is running.',
    });
  }

  /** The one that has an id now, unless it has ended. */
  current(id: string): Sandbox | undefined {
    return this.#live.get(id)?.sandbox;
  }

  /** One takes the id of another, which is nobody's any more; their records say so already. */
  rename(sandbox: Sandbox, to: string): void {
    const entry = this.#live.get(sandbox.id)!;
    this.#live.delete(sandbox.id);
    this.#live.set(to, entry);
    sandbox.id = to;
  }

  /** One that nobody else is changing. */
  #free(id: string): Sandbox {
    const sandbox = this.get(id);
    this.#checkFree(id);
    return sandbox;
  }

  #checkFree(id: string): void {
    const state = this.#orders.has(id) ? 'stopping' : this.#changes.get(id)?.what;
    if (state === undefined) return;
    throw new ForkdError('state_conflict', `sandbox ${id} is ${state}`, { details: { state }, hint: AGAIN });
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

  all(): Sandbox[] {
    return [...this.#live.values()].map(({ sandbox }) => sandbox);
  }

  /** How many run from a snapshot. */
  usersOf(tag: string): number {
    return this.all().filter(({ snapshot }) => snapshot.tag === tag).length;
  }

  record(id: string): SandboxRecord {
    const record = this.parts.store.sandbox(id);
    if (!record) throw new ForkdError('sandbox_not_found', `there is no sandbox ${JSON.stringify(id)}`);
    return record;
  }

  /** Of one that runs without asking the store: every call into a guest asks for it. */
  ownerOf(id: string): string {
    return this.current(id)?.owner ?? this.record(id).owner;
  }

  kill(id: string): Promise<void> {
    return this.#end(id, 'killed');
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
    const { owner } = this.get(id);
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
    const sandbox = this.#free(id);
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

  async #end(id: string, order: Order): Promise<void> {
    const live = this.#live.get(id);
    if (!live) {
      // One that ended by itself is only remembered: killing it forgets it.
      if (this.record(id).state !== 'exited') this.get(id);
      this.parts.store.removeSandbox(id);
      return;
    }
    if (!this.#orders.has(id)) {
      this.parts.store.moveSandbox(id, 'stopping');
      this.#orders.set(id, order);
      this.#changes.get(id)?.stop.abort(new ForkdError('cancelled', `sandbox ${id} is being ended`));
      await live.sandbox.stop();
    }
    await live.settled;
  }

  async #ended(sandbox: Sandbox, exit: SandboxExit): Promise<void> {
    const { store, events } = this.parts;
    // Another VM may take its place, or it another id, until this is written.
    const isCurrent = (): boolean => this.current(sandbox.id) === sandbox;
    const order = isCurrent() ? this.#orders.get(sandbox.id) : undefined;
    const why = order ?? reason(exit);
    await this.#journal.write(() => {
      if (!isCurrent()) return;
      if (order === 'killed') store.removeSandbox(sandbox.id);
      else store.moveSandbox(sandbox.id, 'exited', { ended_at: now(), exit_reason: why });
    });
    if (!isCurrent()) return;
    this.#live.delete(sandbox.id);
    this.#orders.delete(sandbox.id);
    const type = order === 'killed' ? 'deleted' : order || why === SHUT_DOWN ? 'exited' : 'crashed';
    events.tell(type, { ...about(sandbox), message: why });
  }

  #sweep(): void {
    const { store } = this.parts;
    const expired = store.expired(now());
    for (const id of expired) if (this.#live.has(id)) void this.#end(id, 'expired').catch(() => {});
    store.forgetSandboxes(now() - REMEMBER_SECS);
  }
}

async function settled(starting: Promise<Sandbox>): Promise<SpawnResult> {
  try {
    return { ok: true, sandbox: await starting };
  } catch (thrown) {
    return { ok: false, error: asForkdError(thrown) };
  }
}

const AGAIN = 'Wait until that is done and try again.';
const SHUT_DOWN = 'the guest shut down';

function reason({ code, signal, lastWords, why }: SandboxExit): string {
  if (why !== undefined) return why;
  if (code === 0) return SHUT_DOWN;
  const how = signal !== null ? `by signal ${signal}` : code !== null ? `with code ${code}` : 'unexpectedly';
  return `the VM ended ${how}\n${lastWords.slice(-1000)}`.trimEnd();
}

/** What an event says of one. */
export function about({ id, owner, snapshot }: Sandbox): { sandbox_id: string; snapshot_tag: string; owner: string } {
  return { sandbox_id: id, snapshot_tag: snapshot.tag, owner };
}

import type { Engine } from '@forkd/engine';
import { type HostHelper, Scope } from '@forkd/host';
import {
  asForkdError,
  type Diff,
  type EgressRules,
  ForkdError,
  type NetworkPolicy,
  type NetworkPreset,
  type NetworkWire,
  newSandboxId,
} from '@forkd/protocol';
import type { Branching } from './branches.js';
import { guarded } from './cancel.js';
import { claim } from './claim.js';
import { now } from './clock.js';
import type { CreateOptions } from './create-snapshot.js';
import { DataDirectory } from './data-directory.js';
import { checkSameLine, type DiffSide, diffContents, savedRam } from './diff.js';
import { Events } from './events.js';
import { Admission, type AdmissionOptions } from './limits/admission.js';
import { type CgroupOptions, Cgroups } from './limits/cgroups.js';
import type { SandboxLimits } from './limits/settings.js';
import type { DropCounts } from './network/drops.js';
import { type NetworkOptions, Networks } from './network/networks.js';
import type { Parts } from './parts.js';
import { promote } from './promote.js';
import { recover } from './recovery.js';
import { outdated, type Removal, type Retention } from './retention.js';
import { Rollback } from './rollback.js';
import type { Sandbox } from './sandbox.js';
import { MAX_CHILDREN, Sandboxes } from './sandboxes.js';
import { bytesOf, type SnapshotMeta } from './snapshot.js';
import { type SnapshotChanges, type SnapshotInMaking, Snapshots, type SnapshotView } from './snapshots.js';
import { type Source, savedSource } from './source.js';
import { Sources } from './sources.js';
import type { Forked, Forking, SpawnOptions, SpawnResult } from './spawn-options.js';
import type { SandboxRecord } from './store/records.js';
import { SqliteStore } from './store/sqlite-store.js';
import type { SandboxFilter, Store } from './store/store.js';
import { Workspaces } from './workspaces.js';

const NOWHERE: NetworkPolicy = { preset: 'none', allow: [], deny: [] };
const KEEP_ALL: Retention = { keepLast: 0, maxBytes: 0 };

/** A diff that takes longer is given up. */
const DIFF_MS = 120_000;

export interface LimitOptions extends CgroupOptions, AdmissionOptions {
  /** Of sandboxes that come without their own. @default none */
  defaults?: SandboxLimits;
}

export interface OpenOptions {
  /** `true`: sandboxes outlive the program, and those of the program before are taken over. @default false */
  lasting?: boolean;
  /** Other places for parts of the data directory. */
  snapshots?: string | undefined;
  state?: string | undefined;
  /** How many snapshots may be written at the same time. @default 4 */
  writers?: number;
  /** What is kept of the branches. @default all */
  retention?: Retention;
  /** How often what has become too old is removed. @default 60 s */
  gcMs?: number;
  limits?: LimitOptions;
  network?: NetworkOptions;
  /** Where connections may go of which nobody says more. @default nowhere */
  policy?: NetworkPolicy;
  /** The widest preset that sandboxes of an owner may ask for. @default no limit */
  ceilingOf?: (owner: string) => NetworkPreset | undefined;
  /** The certificate (PEM) of who speaks for hosts to guests. */
  authority?: string;
}

/** Owns the snapshots and sandboxes of a data directory. */
export class Controller implements AsyncDisposable {
  readonly data: DataDirectory;
  readonly engine: Engine;
  readonly events: Events;
  readonly store: Store;
  readonly #parts: Parts;
  readonly #sources: Sources;
  readonly #snapshots: Snapshots;
  readonly #sandboxes: Sandboxes;
  readonly #rollback: Rollback;
  readonly workspaces: Workspaces;
  readonly #scope: Scope;

  static async open(
    directory: string,
    engine: Engine,
    helper: HostHelper,
    {
      lasting = false,
      writers = 4,
      retention = KEEP_ALL,
      gcMs = 60_000,
      limits = {},
      network,
      policy = NOWHERE,
      ceilingOf = () => undefined,
      authority,
      ...places
    }: OpenOptions = {},
  ): Promise<Controller> {
    await using scope = new Scope();
    const data = new DataDirectory(directory, lasting, places);
    await data.open();
    scope.add(() => data.close());
    if (lasting) scope.add(await claim(data.own));
    const store = new SqliteStore(lasting ? data.state : ':memory:');
    scope.add(() => store.close());
    const networks = new Networks(helper, engine, data.own, network);
    scope.add(() => networks.close());
    const cgroups = new Cgroups(data.own, limits);
    const admission = new Admission(store, limits);
    const { defaults = {} } = limits;
    const given = { defaults, policy, ceilingOf, authority };
    const parts = { data, engine, helper, store, events: new Events(), cgroups, admission, networks, ...given };
    scope.add(() => cgroups.sweep(new Set(lasting ? store.sandboxes().map(({ place }) => place) : [])));
    const controller = new Controller(parts, writers, retention, scope.release());
    await controller.#recover();
    if (lasting) controller.#sweep(gcMs);
    return controller;
  }

  private constructor(
    parts: Parts,
    writers: number,
    private readonly retention: Retention,
    scope: Scope,
  ) {
    this.#parts = parts;
    this.data = parts.data;
    this.engine = parts.engine;
    this.events = parts.events;
    this.store = parts.store;
    this.#sources = new Sources(parts);
    this.#snapshots = new Snapshots(parts, this.#sources, writers);
    this.#sandboxes = new Sandboxes(parts, this.#snapshots, this.#sources);
    this.#rollback = new Rollback(parts, this.#sandboxes, this.#snapshots, this.#sources);
    this.workspaces = new Workspaces(parts, this.#sandboxes, this.#snapshots);
    this.#scope = scope;
    scope.add(() => this.#sources.close());
    scope.add(() => this.#snapshots.close());
    scope.add(() => this.#sandboxes.close());
  }

  async createSnapshot(options: CreateOptions): Promise<SnapshotMeta> {
    return this.#snapshots.create(options).done;
  }

  /** For those who do not wait: the tag is taken when this returns. */
  beginSnapshot(options: Parameters<Snapshots['create']>[0]): SnapshotInMaking {
    return this.#snapshots.create(options);
  }

  /** Saves a running sandbox under a new tag; `resumed` settles as soon as it runs again. */
  beginBranch(id: string, options: Branching): SnapshotInMaking & { resumed: Promise<number> } {
    return this.#sandboxes.branch(id, options);
  }

  /** Branches a running sandbox and spawns children of that: one result per child. */
  fork(id: string, options: Forking): Promise<Forked> {
    return this.#sandboxes.fork(id, options);
  }

  /** How many branches are being made. */
  get branching(): number {
    return this.#sandboxes.branching;
  }

  /** Settles when none is being written any more, and every sandbox that stood still for it goes on. */
  abandonWriters(): Promise<void> {
    return this.#snapshots.close();
  }

  /** One that children can be made of. */
  snapshot(tag: string): Promise<SnapshotMeta> {
    return this.#snapshots.ready(tag);
  }

  /** One in whatever state. */
  viewSnapshot(tag: string): Promise<SnapshotView> {
    return this.#snapshots.get(tag);
  }

  snapshots(): Promise<SnapshotView[]> {
    return this.#snapshots.list();
  }

  /** With the branches that came from it (`cascade`), or leaving them as they are (`force`): they need nothing of it. */
  async removeSnapshot(tag: string, how: { cascade?: boolean; force?: boolean } = {}): Promise<void> {
    await this.#snapshots.remove(tag, (of) => this.#sandboxes.usersOf(of), how);
  }

  changeSnapshot(tag: string, changes: SnapshotChanges): Promise<SnapshotView> {
    return this.#snapshots.change(tag, changes);
  }

  /** Removes what is not to be kept any longer, or only says what that would be. */
  async gc({ dryRun }: { dryRun: boolean }): Promise<Removal[]> {
    const views = await this.snapshots();
    const sizes = views.map(
      async ({ tag, meta }) => [tag, meta ? await bytesOf(this.data.snapshots, meta) : 0] as const,
    );
    const bytes = new Map(await Promise.all(sizes));
    const states = new Set(this.store.workspaces().map(({ state_tag }) => state_tag));
    const isUsed = (tag: string): boolean =>
      this.#sandboxes.usersOf(tag) > 0 || states.has(tag) || this.#snapshots.isLeased(tag);
    const found = outdated({ views, bytes, isUsed, now: now() }, this.retention);
    if (dryRun) return found;
    const removed: Removal[] = [];
    for (const removal of found)
      try {
        await this.removeSnapshot(removal.tag);
        removed.push(removal);
      } catch (thrown) {
        // Somebody has begun to use it, or was faster.
        if (!['state_conflict', 'snapshot_not_found'].includes(asForkdError(thrown).code)) throw thrown;
      }
    return removed;
  }

  #sweep(everyMs: number): void {
    const timer = setInterval(() => void this.gc({ dryRun: false }).catch(() => {}), everyMs).unref();
    this.#scope.add(() => clearInterval(timer));
  }

  /** Copies a snapshot into a new one that stands alone. */
  compactSnapshot(from: string, to: string, owner: string, signal: AbortSignal): Promise<SnapshotMeta> {
    return this.#snapshots.compact(from, to, owner, signal);
  }

  /** The ways children of a snapshot can be started: the fastest there is, and from its files. */
  async sourcesOf(tag: string): Promise<{ fastest: Source; saved: Source }> {
    const snapshot = await this.snapshot(tag);
    return {
      fastest: await this.#sources.for(snapshot, MAX_CHILDREN, new AbortController().signal),
      saved: savedSource(this.#parts, snapshot),
    };
  }

  spawn(options: SpawnOptions): Promise<SpawnResult[]> {
    return this.#sandboxes.spawn(options);
  }

  /** One that has not ended; 409 if it has, while it is remembered. */
  sandbox(id: string): Sandbox {
    return this.#sandboxes.get(id);
  }

  ownerOf(id: string): string {
    return this.#sandboxes.ownerOf(id);
  }

  /** One whose guest can be talked to. */
  runningSandbox(id: string): Sandbox {
    return this.#sandboxes.running(id);
  }

  sandboxes(): Sandbox[] {
    return this.#sandboxes.all();
  }

  record(id: string): SandboxRecord {
    return this.#sandboxes.record(id);
  }

  records(filter: SandboxFilter): SandboxRecord[] {
    return this.store.sandboxes(filter);
  }

  kill(id: string): Promise<void> {
    return this.#sandboxes.kill(id);
  }

  pause(id: string): Promise<SandboxRecord> {
    return this.#sandboxes.pause(id);
  }

  resume(id: string): Promise<SandboxRecord> {
    return this.#sandboxes.resume(id);
  }

  /** Back to a snapshot of its own line, under the same id. */
  rollback(id: string, tag: string, signal?: AbortSignal): Promise<SandboxRecord> {
    return this.#rollback.run(id, tag, signal);
  }

  /** A child takes the id of the sandbox it was forked from. */
  promote(id: string, signal?: AbortSignal): Promise<SandboxRecord> {
    return promote(this.#parts, this.#sandboxes, id, signal);
  }

  /** What differs between two sandboxes or snapshots of one line. Neither is asked itself: children made for this are. */
  diff(a: string, b: string, owner: string, given?: AbortSignal): Promise<Diff> {
    const limit = new AbortController();
    const late = new ForkdError('timeout', `the diff took longer than ${DIFF_MS / 1000} s`);
    const timer = setTimeout(() => limit.abort(late), DIFF_MS);
    const signal = AbortSignal.any([limit.signal, ...(given ? [given] : [])]);
    return guarded(signal, () => this.#diff(a, b, owner, signal)).finally(() => clearTimeout(timer));
  }

  async #diff(a: string, b: string, owner: string, signal: AbortSignal): Promise<Diff> {
    await using scope = new Scope();
    const [first, second] = [
      await this.#asSnapshot(a, owner, scope, signal),
      await this.#asSnapshot(b, owner, scope, signal),
    ];
    checkSameLine(first, second);
    const child = async (snapshot: SnapshotMeta): Promise<DiffSide> => {
      const metadata = { purpose: 'diff' };
      const [result] = await this.spawn({
        tag: snapshot.tag,
        n: 1,
        owner,
        metadata,
        network: { policy: NOWHERE, rules: {} },
        ttl: DIFF_MS / 500,
        continues: true,
        guestBranch: false,
        signal,
      });
      if (!result?.ok) throw result?.error ?? new ForkdError('internal', 'nothing was spawned');
      scope.add(() => result.sandbox.kill());
      return { snapshot, guest: result.sandbox.guest };
    };
    const contents = await diffContents(await child(first), await child(second), signal);
    const [one, other] = [first, second].map((snapshot) => savedRam(this.data.snapshots, snapshot));
    const { pages, changed } = await this.#parts.helper.compare(one!, other!);
    return { a, b, ...contents, memory: { page_bytes: 4096, pages, pages_changed: changed } };
  }

  /** A sandbox is saved as it is now, for as long as the scope lasts. */
  async #asSnapshot(name: string, owner: string, scope: Scope, signal: AbortSignal): Promise<SnapshotMeta> {
    if (!this.store.sandbox(name)) return this.snapshot(name);
    const tag = `diff-${newSandboxId()}`;
    const meta = await this.beginBranch(name, { tag, mode: 'live', owner, ttl: DIFF_MS / 500, signal }).done;
    scope.add(() => this.removeSnapshot(tag));
    return meta;
  }

  change(id: string, changes: { ttl?: number | null; metadata?: Record<string, string> }): SandboxRecord {
    return this.#sandboxes.change(id, changes);
  }

  changeNetwork(id: string, changes: { policy: NetworkPolicy; rules?: EgressRules | undefined }): SandboxRecord {
    return this.#sandboxes.changeNetwork(id, changes);
  }

  wireOf(id: string): NetworkWire {
    const { place } = this.record(id);
    return this.#parts.networks.wireOf(place, this.#sandboxes.current(id)?.snapshot.network ?? null);
  }

  /** What guests have sent in vain. */
  get networkDrops(): DropCounts {
    return this.#parts.networks.drops;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#scope.close();
  }

  async #recover(): Promise<void> {
    this.#snapshots.reconcile();
    if (!this.data.lasting) return;
    for (const sandbox of await recover(this.#parts, this.#sandboxes)) this.#sandboxes.own(sandbox);
    await this.workspaces.recover();
  }
}

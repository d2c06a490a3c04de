import type { Engine } from '@forkd/engine';
import { type HostHelper, Scope } from '@forkd/host';
import { claim } from './claim.js';
import { DataDirectory } from './data-directory.js';
import { Events } from './events.js';
import { MemoryLimits } from './memory-limit.js';
import type { Parts } from './parts.js';
import { recover } from './recovery.js';
import type { Sandbox } from './sandbox.js';
import { MAX_CHILDREN, Sandboxes, type SpawnOptions, type SpawnResult } from './sandboxes.js';
import type { SnapshotMeta } from './snapshot.js';
import { type BeginOptions, Snapshots, type SnapshotView } from './snapshots.js';
import { type Source, savedSource } from './source.js';
import { Sources } from './sources.js';
import type { SandboxRecord, SnapshotRecord } from './store/records.js';
import { SqliteStore } from './store/sqlite-store.js';
import type { SandboxFilter, Store } from './store/store.js';

export interface OpenOptions {
  /** `true`: sandboxes outlive the program, and those of the program before are taken over. @default false */
  lasting?: boolean;
  /** Other places for parts of the data directory. */
  snapshots?: string | undefined;
  state?: string | undefined;
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
  readonly #scope: Scope;

  static async open(
    directory: string,
    engine: Engine,
    helper: HostHelper,
    { lasting = false, ...places }: OpenOptions = {},
  ): Promise<Controller> {
    await using scope = new Scope();
    const data = new DataDirectory(directory, lasting, places);
    await data.open();
    scope.add(() => data.close());
    if (lasting) scope.add(await claim(data.own));
    const store = new SqliteStore(lasting ? data.state : ':memory:');
    scope.add(() => store.close());
    const parts = { data, engine, helper, store, events: new Events(), limits: new MemoryLimits(data.own) };
    scope.add(() => parts.limits.sweep(new Set(lasting ? store.sandboxes().map(({ id }) => id) : [])));
    const controller = new Controller(parts, scope.release());
    await controller.#recover();
    return controller;
  }

  private constructor(parts: Parts, scope: Scope) {
    this.#parts = parts;
    this.data = parts.data;
    this.engine = parts.engine;
    this.events = parts.events;
    this.store = parts.store;
    this.#sources = new Sources(parts);
    this.#snapshots = new Snapshots(parts, this.#sources);
    this.#sandboxes = new Sandboxes(parts, this.#snapshots, this.#sources);
    this.#scope = scope;
    scope.add(() => this.#sources.close());
    scope.add(() => this.#snapshots.close());
    scope.add(() => this.#sandboxes.close());
  }

  async createSnapshot(options: BeginOptions): Promise<SnapshotMeta> {
    return this.#snapshots.begin(options).done;
  }

  /** For those who do not wait: the tag is taken when this returns. */
  beginSnapshot(options: BeginOptions): { record: SnapshotRecord; done: Promise<SnapshotMeta> } {
    return this.#snapshots.begin(options);
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

  async removeSnapshot(tag: string): Promise<void> {
    const users = this.sandboxes().filter(({ snapshot }) => snapshot.tag === tag);
    await this.#snapshots.remove(tag, users.length);
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

  change(id: string, changes: { ttl?: number | null; metadata?: Record<string, string> }): SandboxRecord {
    return this.#sandboxes.change(id, changes);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#scope.close();
  }

  async #recover(): Promise<void> {
    this.#snapshots.reconcile();
    if (!this.data.lasting) return;
    for (const sandbox of await recover(this.#parts, this.#sandboxes)) this.#sandboxes.own(sandbox);
  }
}

import { readdir, rm } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import type { Engine } from '@forkd/engine';
import { type HostHelper, Scope } from '@forkd/host';
import { asForkdError, ForkdError } from '@forkd/protocol';
import { guarded, unlessAborted } from './cancel.js';
import { type CreateOptions, createSnapshot } from './create-snapshot.js';
import { DataDirectory } from './data-directory.js';
import { inParallel } from './parallel.js';
import type { Parts } from './parts.js';
import { Sandbox } from './sandbox.js';
import { checkFiles, checkHost, readSnapshot, type SnapshotMeta } from './snapshot.js';
import { type Source, savedSource } from './source.js';
import { Sources } from './sources.js';

/** As many as forkd's API ever allowed in one call. */
const MAX_CHILDREN = 1000;

export interface SpawnOptions {
  tag: string;
  n: number;
  env?: Record<string, string>;
  cgroups?: string[];
  /** How many children are started at the same time. @default cores + 1 */
  width?: number;
  /** `false`: the VMs outlive this program. @default true */
  tied?: boolean;
  /** Called for each child as soon as it is ready, before the others are. */
  onReady?: (sandbox: Sandbox, index: number) => void;
  signal?: AbortSignal;
}

/** Children settle one by one: some may fail while others are fine. */
export type SpawnResult = { ok: true; sandbox: Sandbox } | { ok: false; error: ForkdError };

/** Owns the snapshots of a data directory and the sandboxes it has started. Closing it ends them. */
export class Controller implements AsyncDisposable {
  readonly data: DataDirectory;
  readonly engine: Engine;
  readonly #parts: Parts;
  readonly #sources: Sources;
  readonly #sandboxes = new Map<string, Sandbox>();
  readonly #scope = new Scope();

  static async open(directory: string, engine: Engine, helper: HostHelper): Promise<Controller> {
    const controller = new Controller(new DataDirectory(directory), engine, helper);
    await controller.data.open();
    controller.#scope.add(() => controller.data.close());
    return controller;
  }

  private constructor(data: DataDirectory, engine: Engine, helper: HostHelper) {
    this.data = data;
    this.engine = engine;
    this.#parts = { data, engine, helper };
    this.#sources = new Sources(this.#parts);
  }

  async createSnapshot(options: CreateOptions): Promise<SnapshotMeta> {
    const signal = options.signal ?? new AbortController().signal;
    return guarded(signal, async () => {
      const snapshot = await createSnapshot(this.#parts, { ...options, signal });
      options.onProgress?.({ step: 'zygote', detail: 'rehearsing what every child does first' });
      try {
        await unlessAborted(signal, this.#sources.prepare(snapshot));
      } catch (thrown) {
        await this.#discard(snapshot.tag);
        throw thrown;
      }
      return snapshot;
    });
  }

  snapshot(tag: string): Promise<SnapshotMeta> {
    return readSnapshot(this.data.snapshots, tag);
  }

  async snapshots(): Promise<SnapshotMeta[]> {
    const tags = await readdir(this.data.snapshots);
    return Promise.all(tags.sort().map((tag) => this.snapshot(tag)));
  }

  async removeSnapshot(tag: string): Promise<void> {
    const { tag: known } = await this.snapshot(tag);
    const users = [...this.#sandboxes.values()].filter((sandbox) => sandbox.snapshot.tag === known);
    if (users.length > 0)
      throw new ForkdError('state_conflict', `snapshot ${tag} is in use by ${users.length} running sandboxes`, {
        hint: 'Kill them first.',
      });
    await this.#discard(known);
  }

  /** The ways children of a snapshot can be started: the fastest there is, and from its files. */
  async sourcesOf(tag: string): Promise<{ fastest: Source; saved: Source }> {
    const snapshot = await this.snapshot(tag);
    return {
      fastest: await this.#sources.for(snapshot, MAX_CHILDREN, new AbortController().signal),
      saved: savedSource(this.#parts, snapshot),
    };
  }

  async spawn(options: SpawnOptions): Promise<SpawnResult[]> {
    const { n, width = availableParallelism() + 1, env = {}, cgroups = [], tied = true } = options;
    const signal = options.signal ?? new AbortController().signal;
    if (!Number.isInteger(n) || n < 1 || n > MAX_CHILDREN)
      throw new ForkdError('invalid_request', `n is 1 to ${MAX_CHILDREN}, not ${n}`);
    const snapshot = await this.snapshot(options.tag);
    const source = await guarded(signal, async () => {
      await checkHost(snapshot, this.engine);
      await checkFiles(this.data.snapshots, snapshot);
      return this.#sources.for(snapshot, n, signal);
    });
    return inParallel(n, width, async (index): Promise<SpawnResult> => {
      try {
        const birth = { snapshot, source, index, count: n, env, tied, cgroups, signal };
        const sandbox = this.#own(await guarded(signal, () => Sandbox.start(this.#parts, birth)));
        options.onReady?.(sandbox, index);
        return { ok: true, sandbox };
      } catch (thrown) {
        return { ok: false, error: asForkdError(thrown) };
      }
    });
  }

  sandbox(id: string): Sandbox {
    const sandbox = this.#sandboxes.get(id);
    if (!sandbox) throw new ForkdError('sandbox_not_found', `there is no sandbox ${JSON.stringify(id)}`);
    return sandbox;
  }

  sandboxes(): Sandbox[] {
    return [...this.#sandboxes.values()];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.sandboxes().map((sandbox) => sandbox.kill()));
    await this.#sources.close();
    await this.#scope.close();
  }

  async #discard(tag: string): Promise<void> {
    await this.#sources.drop(tag);
    await rm(`${this.data.snapshots}/${tag}`, { recursive: true, force: true });
  }

  #own(sandbox: Sandbox): Sandbox {
    this.#sandboxes.set(sandbox.id, sandbox);
    void sandbox.exited.then(() => this.#sandboxes.delete(sandbox.id));
    return sandbox;
  }
}

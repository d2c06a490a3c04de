import type { Vm, VmExit } from '@forkd/engine';
import { connectGuest, type GuestClient } from '@forkd/guest';
import { Scope } from '@forkd/host';
import { ForkdError, newSandboxId } from '@forkd/protocol';
import { whileAlive } from './alive.js';
import { identityOf } from './identity.js';
import type { Parts } from './parts.js';
import type { SnapshotMeta } from './snapshot.js';
import type { Source } from './source.js';
import { placeFor } from './zygote.js';

/** A child that has not taken on its identity by then is not handed out. */
const IDENTITY_TIMEOUT_MS = 60_000;

export interface Birth {
  snapshot: SnapshotMeta;
  source: Source;
  /** This child is number `index` of `count` made by one spawn. */
  index: number;
  count: number;
  env: Record<string, string>;
  tied: boolean;
  cgroups: string[];
  signal: AbortSignal;
}

/** When each step of a birth was done, in ms since the spawn began. */
export interface Timeline {
  started: number;
  restored: number;
  ready: number;
}

/** One running VM, child of a snapshot. `guest` is how to use it. */
export class Sandbox implements AsyncDisposable {
  readonly exited: Promise<VmExit>;
  /** Unix time in seconds. */
  readonly createdAt = Math.floor(Date.now() / 1000);
  #scope: Scope;

  /** Restores a child and makes it its own: no sandbox exists before its guest has acknowledged who it is. */
  static async start(parts: Parts, birth: Birth): Promise<Sandbox> {
    const { snapshot, source, index, count, signal } = birth;
    const started = performance.now();
    await using scope = new Scope();
    const id = newSandboxId();
    const directory = `${parts.data.own}/${id}`;
    signal.throwIfAborted();
    await placeFor(parts, source, directory, scope);
    const vm = scope.own(await source.start({ directory, tied: birth.tied, cgroups: birth.cgroups }));
    const restored = performance.now();
    const guest = connectGuest(await vm.channel());
    scope.add(() => guest.close());
    const identity = identityOf(id, snapshot, index, count, birth.env);
    const acknowledged = guest.identity(identity, { timeoutMs: IDENTITY_TIMEOUT_MS, signal });
    await whileAlive(vm, 'before it was ready', acknowledged);
    const timeline = { started, restored, ready: performance.now() };
    return new Sandbox(id, snapshot, vm, guest, timeline, scope.release());
  }

  private constructor(
    readonly id: string,
    readonly snapshot: SnapshotMeta,
    readonly vm: Vm,
    readonly guest: GuestClient,
    readonly timeline: Timeline,
    scope: Scope,
  ) {
    this.#scope = scope;
    this.exited = vm.exited;
    // A VM that ends by itself leaves nothing behind either.
    void vm.exited.then(({ lastWords }) => {
      guest.close(new ForkdError('vmm_exited', `the VM of sandbox ${id} has ended\n${lastWords}`.trimEnd()));
      return scope.close();
    });
  }

  async kill(): Promise<void> {
    await this.#scope.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }
}

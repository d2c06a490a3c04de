import { rm } from 'node:fs/promises';
import type { Vm } from '@forkd/engine';
import { connectGuest, type GuestClient } from '@forkd/guest';
import { Scope } from '@forkd/host';
import { asForkdError, ForkdError } from '@forkd/protocol';
import { whileAlive } from './alive.js';
import { greet, mannerOf } from './greet.js';
import { identityOf } from './identity.js';
import { blameLimit, exitOf, type SandboxExit } from './limits/out-of-memory.js';
import { resourcesOf, type SandboxLimits } from './limits/settings.js';
import type { Parts } from './parts.js';
import { readSnapshot, type SnapshotMeta, snapshotFiles } from './snapshot.js';
import type { Source } from './source.js';
import type { SandboxRecord } from './store/records.js';
import { placeFor } from './zygote.js';

/** A child that has not taken on its identity by then is not handed out. */
const IDENTITY_TIMEOUT_MS = 60_000;

/** A guest answers within milliseconds; on a busy host it takes longer. */
const HEARD_MS = 5_000;

/** Who keeps the records of sandboxes, and so has to know when one is to end. */
export interface Keeper {
  kill(id: string): Promise<void>;
}

export interface Birth {
  id: string;
  /** As in its record. */
  place: string;
  snapshot: SnapshotMeta;
  source: Source;
  /** This child is number `index` of `count` made by one spawn. */
  index: number;
  count: number;
  owner: string;
  env: Record<string, string>;
  guestBranch: boolean;
  limits: SandboxLimits;
  cgroups: string[];
  keeper: Keeper;
  signal: AbortSignal;
}

/** When each step of a birth was done, in ms since this program began. */
export interface Timeline {
  started: number;
  restored: number;
  ready: number;
}

/** What a sandbox is made of, when its VM runs and its guest has answered. */
interface Making {
  id: string;
  directory: string;
  snapshot: SnapshotMeta;
  vm: Vm;
  guest: GuestClient;
  owner: string;
  guestBranch: boolean;
  keeper: Keeper;
  /** Has all of it. */
  scope: Scope;
  end: Promise<SandboxExit>;
  timeline?: Timeline;
}

/** One running VM, child of a snapshot. `guest` is how to use it. */
export class Sandbox implements AsyncDisposable {
  /** Another one after it was promoted. */
  id: string;
  /** Holds its writable disk, `upper.img`. */
  readonly directory: string;
  readonly snapshot: SnapshotMeta;
  readonly vm: Vm;
  /** Another one when it goes on after it was adopted paused. */
  guest: GuestClient;
  readonly owner: string;
  /** Whether its processes may ask for branches. */
  readonly guestBranch: boolean;
  /** Not known of one that was adopted. */
  readonly timeline: Timeline | undefined;
  /** Settles when the VM has ended, for whatever reason, and nothing is left of it. */
  readonly exited: Promise<SandboxExit>;
  paused = false;
  /** One that stood still when it was adopted could not be asked. */
  #isHeard = true;
  readonly #scope: Scope;
  readonly #keeper: Keeper;

  /** Restores a child and makes it its own: no sandbox exists before its guest has acknowledged who it is. */
  static async start(parts: Parts, birth: Birth): Promise<Sandbox> {
    const { id, place, snapshot, source, index, count, signal, limits } = birth;
    const started = performance.now();
    await using scope = new Scope();
    const directory = `${parts.data.own}/${place}`;
    signal.throwIfAborted();
    await placeFor(parts, source, directory, scope);
    const memoryLimit = limits.memory_limit_mib ?? null;
    scope.add(() => parts.cgroups.remove(place));
    const cgroups = [...birth.cgroups, ...(await parts.cgroups.make(place, limits))];
    const vm = scope.own(await source.start({ directory, tied: !parts.data.lasting, cgroups, sandbox: id }));
    if (resourcesOf(limits).includes('io')) await vm.throttle?.(limits);
    const restored = performance.now();
    const { guestBranch } = birth;
    const identity = { ...identityOf(id, snapshot, index, count, birth.env, guestBranch), born: true };
    const soon = { timeoutMs: IDENTITY_TIMEOUT_MS, signal };
    const acknowledged = greet(vm, mannerOf(snapshot), (guest) => guest.identity(identity, soon));
    const guest = await whileAlive(vm, 'before it was ready', acknowledged).catch(async (thrown) => {
      throw await blameLimit(parts.cgroups, place, memoryLimit, thrown);
    });
    scope.add(() => guest.close());
    const timeline = { started, restored, ready: performance.now() };
    const end = exitOf(parts.cgroups, vm, place, memoryLimit);
    const { owner, keeper } = birth;
    const made = { id, directory, snapshot, vm, guest, owner, guestBranch, keeper, end, timeline };
    return new Sandbox({ ...made, scope: scope.release() });
  }

  /** Takes over one that an earlier program has started. One that cannot be taken over is ended. */
  static async adopt(parts: Parts, { id, snapshot_tag, state, ...record }: SandboxRecord, keeper: Keeper) {
    await using scope = new Scope();
    const directory = `${parts.data.own}/${record.place}`;
    scope.add(() => rm(directory, { recursive: true, force: true }));
    scope.add(() => parts.cgroups.remove(record.place));
    const process = { pid: record.pid ?? 0, startTime: record.start_time ?? 0 };
    const snapshot = await readSnapshot(parts.data.snapshots, snapshot_tag);
    const { memory } = snapshotFiles(`${parts.data.snapshots}/${snapshot_tag}`);
    const vm = scope.own(await parts.engine.adopt({ machine: snapshot.machine, memory, directory, ...process }));
    // Without it the guest finds every connection refused, and goes on.
    if (snapshot.network?.backend === 'tap')
      await parts.networks.adopt({ directory, sandbox: id }, vm).catch((thrown) => {
        const message = `its network could not be taken over: ${asForkdError(thrown).message}`;
        parts.events.tell('network.lost', { sandbox_id: id, owner: record.owner, snapshot_tag, message });
      });
    const paused = state === 'paused';
    // The program before may have ended between the order and its record: the record is what counts.
    await (paused ? vm.pause() : vm.resume());
    const guest = await (paused ? vm.channel().then(connectGuest) : heard(vm, snapshot));
    scope.add(() => guest.close());
    const end = exitOf(parts.cgroups, vm, record.place, record.memory_limit_mib);
    const [owner, guestBranch] = [record.owner, record.guest_branch === 1];
    const made = { id, directory, snapshot, vm, guest, owner, guestBranch, keeper, end };
    const sandbox = new Sandbox({ ...made, scope: scope.release() });
    sandbox.paused = paused;
    sandbox.#isHeard = !paused;
    // A promotion may have been cut short when its guest had been told already, and its record had not.
    if (snapshot.branch && !paused) void sandbox.#remind(record.env).catch(() => {});
    return sandbox;
  }

  private constructor({ scope, end, ...made }: Making) {
    this.id = made.id;
    this.directory = made.directory;
    this.snapshot = made.snapshot;
    this.vm = made.vm;
    this.guest = made.guest;
    this.owner = made.owner;
    this.guestBranch = made.guestBranch;
    this.timeline = made.timeline;
    this.#scope = scope;
    this.#keeper = made.keeper;
    this.exited = end.then(async (exit) => {
      this.guest.close(
        new ForkdError('vmm_exited', `the VM of sandbox ${this.id} has ended\n${exit.lastWords}`.trimEnd()),
      );
      await scope.close();
      return exit;
    });
  }

  async resume(): Promise<void> {
    await this.vm.resume();
    if (this.#isHeard) return;
    this.guest.close();
    this.guest = await heard(this.vm, this.snapshot);
    this.#isHeard = true;
  }

  /** Tells its guest who it is, also later in its life. */
  async rename(id: string, env: Record<string, string>, signal?: AbortSignal): Promise<void> {
    const limits = { timeoutMs: IDENTITY_TIMEOUT_MS, ...(signal && { signal }) };
    await this.guest.identity(identityOf(id, this.snapshot, 0, 1, env, this.guestBranch), limits);
  }

  async #remind(env: Record<string, string>): Promise<void> {
    if ((await this.guest.health()).identity !== this.id) await this.rename(this.id, env);
  }

  kill(): Promise<void> {
    return this.#keeper.kill(this.id);
  }

  /** Ends the VM without a word to anyone; for its keeper. */
  async stop(): Promise<void> {
    await this.#scope.close();
    await this.exited;
  }

  /** Lets go of it and leaves it running, for a later program to adopt. */
  leave(): void {
    this.guest.close();
    this.vm.leave();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }
}

/** One that is too busy to answer is there all the same. */
async function heard(vm: Vm, { hail: key }: SnapshotMeta): Promise<GuestClient> {
  const asked = greet(vm, { key, isTalking: true }, (guest) => guest.health({ timeoutMs: HEARD_MS }));
  return asked.catch(async () => connectGuest(await vm.channel()));
}

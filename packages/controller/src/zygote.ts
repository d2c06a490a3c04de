import { mkdir, rm } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ForkPlacement, Sleeper, Vm } from '@forkd/engine';
import type { GuestClient } from '@forkd/guest';
import { Scope } from '@forkd/host';
import { blaming, whileAlive } from './alive.js';
import { greet, mannerOf } from './greet.js';
import { identityOf } from './identity.js';
import type { Wiring } from './network/wiring.js';
import type { Parts } from './parts.js';
import { untilQuiet } from './quiet.js';
import type { SnapshotMeta } from './snapshot.js';
import { type ChildPlacement, type Source, savedSource } from './source.js';

/** Twice: the second time the guest takes the paths of everything that the first time had set up. */
const REHEARSALS = 2;
/** Within it comes about all that an idle guest does now and then. */
const RIPENING_MS = 6_000;

/**
 * A paused VM that children are forked from: they share its memory, and the emulator's translation of all the code that it has
 * run. That of a recipe is restored from the snapshot and goes through what every child goes through first: a connection, an
 * identity, an eval. Then, as long as nobody needs it, it idles for some seconds, and what its guest does every now and then is
 * translated, too: or else each child would do that. That of a branch is a copy of the sandbox that was branched, which has all that behind it.
 */
export class Zygote implements Source, AsyncDisposable {
  readonly #scope: Scope;

  /** `undefined` where VMs cannot be forked: by the engine's own word, or because a trial fork failed. */
  static async prepare(parts: Parts, snapshot: SnapshotMeta, signal: AbortSignal): Promise<Zygote | undefined> {
    await using scope = new Scope();
    const saved = savedSource(parts, snapshot);
    const directory = newPlace(parts);
    await placeFor(parts, saved, directory, scope);
    const vm = scope.own(await saved.start({ directory, tied: true }));
    if (!vm.fork) return undefined;
    await whileAlive(vm, 'in rehearsal', rehearseAll(vm, snapshot, signal));
    await vm.pause();
    const zygote = new Zygote(parts, snapshot.network, vm, `${directory}/upper.img`, scope.release());
    const forks = await zygote.#canFork(snapshot, signal);
    if (forks && !signal.aborted) return zygote.#ripening();
    await zygote[Symbol.asyncDispose]();
    signal.throwIfAborted();
    return undefined;
  }

  /** `upper` is the disk of the instant at which the copy was made. */
  static async wake(
    parts: Parts,
    sleeper: Sleeper,
    { network, upper }: { network: Wiring | null; upper: string },
  ): Promise<Zygote> {
    await using scope = new Scope();
    const directory = newPlace(parts);
    await placeFor(parts, { upper }, directory, scope);
    const waking = (nic: Pick<ForkPlacement, 'nic'>): Promise<Vm> => sleeper.wake({ directory, tied: true, ...nic });
    const vm = scope.own(await parts.networks.connect({ directory, wiring: network }, waking));
    return new Zygote(parts, network, vm, `${directory}/upper.img`, scope.release());
  }

  private constructor(
    private readonly parts: Parts,
    private readonly wiring: Wiring | null,
    readonly vm: Vm,
    readonly upper: string,
    scope: Scope,
  ) {
    this.#scope = scope;
    this.exited = vm.exited.then(() => this[Symbol.asyncDispose]());
  }

  /** Settles when the zygote is gone, for whatever reason. */
  readonly exited: Promise<void>;

  readonly #needed = new AbortController();
  #still: Promise<void> = Promise.resolve();

  /** From here on it stands still, and children can be forked. */
  still(): Promise<void> {
    this.#needed.abort();
    return this.#still;
  }

  #ripening(): this {
    const idle = async (): Promise<void> => {
      await this.vm.resume();
      await sleep(RIPENING_MS, undefined, { signal: this.#needed.signal, ref: false }).catch(() => {});
      await this.vm.pause();
    };
    this.#still = idle();
    // Told to whoever needs it.
    this.#still.catch(() => {});
    return this;
  }

  start(placement: ChildPlacement): Promise<Vm> {
    const { wiring } = this;
    return this.parts.networks.connect({ ...placement, wiring }, (nic) => this.vm.fork!({ ...placement, ...nic }));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.still().catch(() => {});
    await this.#scope.close();
  }

  /** Forking leans on how the emulator and its C library are built; only doing it once shows that it works here. */
  async #canFork(snapshot: SnapshotMeta, signal: AbortSignal): Promise<boolean> {
    await using scope = new Scope();
    const directory = `${this.upper}-trial`;
    await placeFor(this.parts, this, directory, scope);
    try {
      const trial = scope.own(await this.start({ directory, tied: true }));
      const guest = await whileAlive(
        trial,
        'on trial',
        greet(trial, mannerOf(snapshot), (client) => client.health({ signal })),
      );
      guest.close();
      return true;
    } catch {
      return false;
    }
  }
}

let places = 0;
/** Not named after the snapshot: a tag may be longer than the path of a socket has room for. */
function newPlace({ data }: Parts): string {
  return `${data.own}/zygote-${places++}`;
}

/** Makes the directory of a child and puts its disk there. */
export async function placeFor(
  { helper }: Parts,
  source: Pick<Source, 'upper' | 'vm'>,
  directory: string,
  scope: Scope,
): Promise<void> {
  await mkdir(directory);
  scope.add(() => rm(directory, { recursive: true, force: true }));
  const cloned = helper.cloneFile(source.upper, `${directory}/upper.img`);
  await (source.vm ? blaming(source.vm, 'while children were forked from it', cloned) : cloned);
}

async function rehearseAll(vm: Vm, snapshot: SnapshotMeta, signal: AbortSignal): Promise<void> {
  for (let time = 0; time < REHEARSALS; time++) {
    await withGuest(vm, snapshot, (guest) => rehearse(guest, snapshot, signal));
    await untilQuiet(vm.pid, signal);
  }
  // Last, because it also marks the seeds that the rehearsals have left in the guest's generators as stale.
  await withGuest(vm, snapshot, (guest) => guest.settle({ signal }));
  await untilQuiet(vm.pid, signal);
}

async function rehearse(guest: GuestClient, snapshot: SnapshotMeta, signal: AbortSignal): Promise<void> {
  await guest.identity(identityOf('zygote', snapshot, 0, 1, {}), { signal });
  if (!snapshot.language || !snapshot.rehearsal) return;
  const line = { language: snapshot.language, code: snapshot.rehearsal, signal };
  for (let time = 0; time < REHEARSALS; time++) await guest.eval(line);
}

async function withGuest(vm: Vm, of: SnapshotMeta, use: (guest: GuestClient) => Promise<void>): Promise<void> {
  (await greet(vm, mannerOf(of), use)).close();
}

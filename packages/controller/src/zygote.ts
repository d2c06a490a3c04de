import { mkdir, rm } from 'node:fs/promises';
import type { Vm } from '@forkd/engine';
import type { GuestClient } from '@forkd/guest';
import { Scope } from '@forkd/host';
import { blaming, whileAlive } from './alive.js';
import { greet } from './greet.js';
import { identityOf } from './identity.js';
import type { Parts } from './parts.js';
import { untilQuiet } from './quiet.js';
import type { SnapshotMeta } from './snapshot.js';
import { type ChildPlacement, type Source, savedSource } from './source.js';

/** Twice: the second time the guest takes the paths of everything that the first time had set up. */
const REHEARSALS = 2;

/**
 * A paused VM restored from a snapshot that has already gone through what every child goes through first: a connection, an
 * identity, an eval. Children forked from it share its memory and the emulator's translation of all that code.
 */
export class Zygote implements Source, AsyncDisposable {
  readonly #scope: Scope;

  /** `undefined` where VMs cannot be forked: by the engine's own word, or because a trial fork failed. */
  static async prepare(parts: Parts, snapshot: SnapshotMeta, signal: AbortSignal): Promise<Zygote | undefined> {
    await using scope = new Scope();
    const saved = savedSource(parts, snapshot);
    const directory = `${parts.data.own}/zygote-${snapshot.tag}`;
    await placeFor(parts, saved, directory, scope);
    const vm = scope.own(await saved.start({ directory, tied: true }));
    if (!vm.fork) return undefined;
    await whileAlive(vm, 'in rehearsal', rehearseAll(vm, snapshot, signal));
    await vm.pause();
    const zygote = new Zygote(parts, snapshot, vm, `${directory}/upper.img`, scope.release());
    const forks = await zygote.#canFork(signal);
    if (forks && !signal.aborted) return zygote;
    await zygote[Symbol.asyncDispose]();
    signal.throwIfAborted();
    return undefined;
  }

  private constructor(
    private readonly parts: Parts,
    private readonly snapshot: SnapshotMeta,
    readonly vm: Vm,
    readonly upper: string,
    scope: Scope,
  ) {
    this.#scope = scope;
    this.exited = vm.exited.then(() => this[Symbol.asyncDispose]());
  }

  /** Settles when the zygote is gone, for whatever reason. */
  readonly exited: Promise<void>;

  start(placement: ChildPlacement): Promise<Vm> {
    const ends = { ...placement, wiring: this.snapshot.network };
    return this.parts.networks.connect(ends, (nic) => this.vm.fork!({ ...placement, ...nic }));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#scope.close();
  }

  /** Forking leans on how the emulator and its C library are built; only doing it once shows that it works here. */
  async #canFork(signal: AbortSignal): Promise<boolean> {
    await using scope = new Scope();
    const directory = `${this.upper}-trial`;
    await placeFor(this.parts, this, directory, scope);
    try {
      const trial = scope.own(await this.start({ directory, tied: true }));
      const guest = await whileAlive(
        trial,
        'on trial',
        greet(trial, (client) => client.health({ signal })),
      );
      guest.close();
      return true;
    } catch {
      return false;
    }
  }
}

/** Makes the directory of a child and puts its disk there. */
export async function placeFor({ helper }: Parts, source: Source, directory: string, scope: Scope): Promise<void> {
  await mkdir(directory);
  scope.add(() => rm(directory, { recursive: true, force: true }));
  const cloned = helper.cloneFile(source.upper, `${directory}/upper.img`);
  await (source.vm ? blaming(source.vm, 'while children were forked from it', cloned) : cloned);
}

async function rehearseAll(vm: Vm, snapshot: SnapshotMeta, signal: AbortSignal): Promise<void> {
  for (let time = 0; time < REHEARSALS; time++) {
    await withGuest(vm, (guest) => rehearse(guest, snapshot, signal));
    await untilQuiet(vm.pid, signal);
  }
  // Last, because it also marks the seeds that the rehearsals have left in the guest's generators as stale.
  await withGuest(vm, (guest) => guest.settle({ signal }));
  await untilQuiet(vm.pid, signal);
}

async function rehearse(guest: GuestClient, snapshot: SnapshotMeta, signal: AbortSignal): Promise<void> {
  await guest.identity(identityOf('zygote', snapshot, 0, 1, {}), { signal });
  if (!snapshot.language || !snapshot.rehearsal) return;
  const line = { language: snapshot.language, code: snapshot.rehearsal, signal };
  for (let time = 0; time < REHEARSALS; time++) await guest.eval(line);
}

async function withGuest(vm: Vm, use: (guest: GuestClient) => Promise<void>): Promise<void> {
  (await greet(vm, use)).close();
}

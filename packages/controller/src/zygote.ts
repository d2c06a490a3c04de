import { mkdir, rm } from 'node:fs/promises';
import type { ForkPlacement, Vm } from '@forkd/engine';
import { connectGuest, type GuestClient } from '@forkd/guest';
import { Scope } from '@forkd/host';
import { identityOf } from './identity.js';
import type { Parts } from './parts.js';
import { untilQuiet } from './quiet.js';
import type { SnapshotMeta } from './snapshot.js';
import { type Source, savedSource } from './source.js';

/** Twice: the second time the guest takes the paths of everything that the first time had set up. */
const REHEARSALS = 2;

/**
 * A paused VM restored from a snapshot that has already gone through what every child goes through first: a connection, an
 * identity, an eval. Children forked from it share its memory and the emulator's translation of all that code.
 */
export class Zygote implements Source, AsyncDisposable {
  readonly #fork: NonNullable<Vm['fork']>;
  readonly #scope: Scope;

  /** `undefined` where VMs cannot be forked: by the engine's own word, or because a trial fork failed. */
  static async prepare(parts: Parts, snapshot: SnapshotMeta): Promise<Zygote | undefined> {
    await using scope = new Scope();
    const saved = savedSource(parts, snapshot);
    const directory = `${parts.data.own}/zygote-${snapshot.tag}`;
    await placeFor(parts, saved, directory, scope);
    const vm = scope.own(await saved.start({ directory, tied: true }));
    if (!vm.fork) return undefined;
    for (let time = 0; time < REHEARSALS; time++) {
      await withGuest(vm, (guest) => rehearse(guest, snapshot));
      await untilQuiet(vm.pid);
    }
    // Last, because it also marks the seeds that the rehearsals have left in the guest's generators as stale.
    await withGuest(vm, (guest) => guest.settle());
    await untilQuiet(vm.pid);
    await vm.pause();
    const zygote = new Zygote(vm, `${directory}/upper.img`, scope.release());
    if (await zygote.#canFork(parts)) return zygote;
    await zygote[Symbol.asyncDispose]();
    return undefined;
  }

  private constructor(
    vm: Vm,
    readonly upper: string,
    scope: Scope,
  ) {
    this.#fork = vm.fork!;
    this.#scope = scope;
    this.exited = vm.exited.then(() => this[Symbol.asyncDispose]());
  }

  /** Settles when the zygote is gone, for whatever reason. */
  readonly exited: Promise<void>;

  start(placement: ForkPlacement): Promise<Vm> {
    return this.#fork(placement);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#scope.close();
  }

  /** Forking leans on how the emulator and its C library are built; only doing it once shows that it works here. */
  async #canFork(parts: Parts): Promise<boolean> {
    await using scope = new Scope();
    const directory = `${this.upper}-trial`;
    await placeFor(parts, this, directory, scope);
    try {
      const trial = scope.own(await this.start({ directory, tied: true }));
      const guest = connectGuest(await trial.channel());
      scope.add(() => guest.close());
      await guest.health();
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
  await helper.cloneFile(source.upper, `${directory}/upper.img`);
}

async function rehearse(guest: GuestClient, snapshot: SnapshotMeta): Promise<void> {
  await guest.identity(identityOf('zygote', snapshot, 0, 1, {}));
  if (!snapshot.language || !snapshot.rehearsal) return;
  const line = { language: snapshot.language, code: snapshot.rehearsal };
  for (let time = 0; time < REHEARSALS; time++) await guest.eval(line);
}

async function withGuest(vm: Vm, use: (guest: GuestClient) => Promise<void>): Promise<void> {
  const guest = connectGuest(await vm.channel());
  try {
    await use(guest);
  } finally {
    guest.close();
  }
}

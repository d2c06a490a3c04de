import { rm } from 'node:fs/promises';
import type { Phases, Sleeper, Vm } from '@forkd/engine';
import { type Captured, Scope, unlessAborted } from '@forkd/host';
import { asForkdError } from '@forkd/protocol';
import type { Wiring } from './network/wiring.js';
import type { Parts } from './parts.js';
import type { snapshotFiles } from './snapshot.js';
import { Zygote } from './zygote.js';

/**
 * How the memory is taken. `live`: the VM stands still only while its process is forked, and the pages are read from the
 * copy afterwards. `diff`: they are read while it stands still. `full`: all of its memory is.
 */
export type BranchMode = 'live' | 'diff' | 'full';

/** The copy of the sandbox did not wake. */
export class Lost extends Error {}

export interface Taking {
  parts: Parts;
  vm: Vm;
  network: Wiring | null;
  to: ReturnType<typeof snapshotFiles>;
  phases: Phases;
  /** Ends when the branch is written, or has failed; nobody writes to it then. */
  scope: Scope;
  signal: AbortSignal;
  /** Whether a live branch may be a copy of the whole VMM. */
  wakes: boolean;
  /** In mode full: takes the time of a diff as well, and throws it away. */
  measureDiff: boolean;
}

export interface Taken {
  captured: Captured;
  captureMs: number;
  /** What children of the branch can be forked from at once. */
  zygote?: Zygote;
}

/** To be called in the pause; what it returns, when the VM runs again. */
export type Take = (taking: Taking) => Promise<() => Promise<Taken>>;

export const TAKE: Record<BranchMode, Take> = {
  async live(taking) {
    const { vm, to, phases, scope, signal, wakes } = taking;
    const sleeper = wakes ? await asleep(taking) : undefined;
    if (sleeper) return () => woken(taking, sleeper);
    const twin = scope.own(await vm.freeze(to.state, { phases }));
    return () => timed(twin.capture(to.diff, signal));
  },

  async diff({ vm, to, phases }) {
    const taken = await timed(vm.capture(to.state, to.diff, { phases }));
    return async () => taken;
  },

  async full({ vm, to, phases, measureDiff }) {
    let captureMs = 0;
    if (measureDiff) {
      ({ captureMs } = await timed(vm.capture(to.state, to.diff)));
      await Promise.all([rm(to.diff), rm(to.state)]);
    }
    const captured = await vm.capture(to.state, to.memory, { full: true, phases });
    return async () => ({ captured, captureMs });
  },
};

/** `undefined`: one that cannot be copied now can be frozen all the same. */
async function asleep({ vm, phases, scope }: Taking): Promise<Sleeper | undefined> {
  const sleeper = vm.forkAsleep && (await phases.time('memory', vm.forkAsleep()).catch(() => undefined));
  return sleeper && scope.own(sleeper);
}

async function woken({ parts, network, to, scope, signal }: Taking, sleeper: Sleeper): Promise<Taken> {
  await using kept = new Scope();
  const zygote = kept.own(await wake(parts, sleeper, signal, { network, upper: to.upper }));
  const capturing = zygote.vm.capture(to.state, to.diff, { background: true });
  // It ends with the zygote, and until then writes to the draft.
  scope.add(() => Promise.allSettled([capturing]));
  const taken = await timed(unlessAborted(signal, capturing));
  kept.release();
  return { ...taken, zygote };
}

async function wake(parts: Parts, sleeper: Sleeper, signal: AbortSignal, of: Parameters<typeof Zygote.wake>[2]) {
  try {
    return await Zygote.wake(parts, sleeper, of);
  } catch (cause) {
    signal.throwIfAborted();
    throw new Lost(`the sandbox is paused again, because its copy did not wake: ${asForkdError(cause).message}`);
  }
}

async function timed(capturing: Promise<Captured>): Promise<Taken> {
  const since = performance.now();
  const captured = await capturing;
  return { captured, captureMs: performance.now() - since };
}

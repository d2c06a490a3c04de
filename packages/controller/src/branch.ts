import { link, rm, stat } from 'node:fs/promises';
import { Phases, type Sleeper, type Twin } from '@forkd/engine';
import { type Captured, Scope } from '@forkd/host';
import { asForkdError } from '@forkd/protocol';
import { admitBranch } from './budget.js';
import { unlessAborted } from './cancel.js';
import { now } from './clock.js';
import { checkSpace, makeDraft, publish } from './draft.js';
import type { Parts } from './parts.js';
import type { Report } from './progress.js';
import type { Sandbox } from './sandbox.js';
import { type SnapshotMeta, snapshotFiles } from './snapshot.js';
import { Zygote } from './zygote.js';

/** Beside the pages that differ: the writable disk as far as it holds data, and the device state. */
const SPARE_MIB = 32;

/**
 * How the memory is taken. `live`: the VM stands still only while its process is forked, and the pages are read from the
 * copy afterwards. `diff`: they are read while it stands still. `full`: all of its memory is.
 */
export type BranchMode = 'live' | 'diff' | 'full';

export interface BranchOptions {
  tag: string;
  mode: BranchMode;
  /** In mode full: takes the time of a diff as well, and throws it away. */
  measureDiff?: boolean;
  /** Called as soon as the sandbox runs again. */
  onResumed?: (pauseMs: number) => void;
  report?: Report;
  signal: AbortSignal;
}

export interface Branched {
  meta: SnapshotMeta;
  /** What its children can be forked from at once. */
  zygote?: Zygote;
}

/** The copy of the sandbox did not wake. */
class Lost extends Error {}

/** Saves a sandbox as it is at one instant, under a new tag. Whatever happens, the sandbox goes on. */
export async function branchSandbox(parts: Parts, sandbox: Sandbox, options: BranchOptions): Promise<Branched> {
  try {
    return await branch(parts, sandbox, options, true);
  } catch (thrown) {
    if (!(thrown instanceof Lost)) throw thrown;
    // A second pause is better than no branch.
    options.report?.({ step: 'branch', detail: thrown.message });
    return branch(parts, sandbox, options, false);
  }
}

async function branch(parts: Parts, sandbox: Sandbox, options: BranchOptions, wakes: boolean): Promise<Branched> {
  const { data, helper } = parts;
  const { tag, mode, signal } = options;
  const { snapshot: parent, vm } = sandbox;
  await checkSpace(data.own, SPARE_MIB + (mode === 'full' ? parent.machine.memoryMib : 0));
  await using scope = new Scope();
  const draft = await makeDraft(data, tag, scope);
  const from = snapshotFiles(`${data.snapshots}/${parent.tag}`);
  const to = snapshotFiles(draft);
  await link(from.base, to.base);
  // One inode for all generations: their sandboxes share its pages, and it stays as long as any of them.
  if (mode !== 'full') await link(from.memory, to.memory);
  signal.throwIfAborted();

  const phases = new Phases();
  let captureMs = 0;
  const timed = async <T>(work: Promise<T>): Promise<T> => {
    const since = performance.now();
    const result = await work;
    captureMs = performance.now() - since;
    return result;
  };
  const asleep = async (): Promise<Sleeper | undefined> => {
    // One that cannot be copied now can be frozen all the same.
    if (wakes && vm.forkAsleep) return phases.time('memory', vm.forkAsleep()).catch(() => undefined);
  };
  const memory = async (): Promise<Sleeper | Twin | Captured> => {
    if (mode === 'live') return scope.own((await asleep()) ?? (await vm.freeze(to.state, { phases })));
    if (mode === 'diff') return timed(vm.capture(to.state, to.diff, { phases }));
    if (options.measureDiff) {
      await timed(vm.capture(to.state, to.diff));
      await Promise.all([rm(to.diff), rm(to.state)]);
    }
    return vm.capture(to.state, to.memory, { full: true, phases });
  };
  const { pauseMs, value: taken } = await vm.guarded(
    async () => {
      // The disk is copied by another thread of the helper than the one that looks after the memory.
      const disk = phases.time('disk', helper.cloneFile(`${sandbox.directory}/upper.img`, to.upper));
      const pages = memory();
      const settled = Promise.allSettled([disk, pages]);
      // When nobody waits any longer, both may still be writing to the draft.
      scope.add(() => settled);
      await settled;
      await disk;
      return pages;
    },
    { signal, phases },
  );
  options.onResumed?.(pauseMs);
  await using kept = new Scope();
  const zygote =
    'wake' in taken
      ? kept.own(await wake(parts, taken, signal, { network: parent.network, upper: to.upper }))
      : undefined;
  const capture = (): Promise<Captured> | Captured => {
    if ('capture' in taken) return timed(taken.capture(to.diff, signal));
    if (!zygote) return taken as Captured;
    const capturing = zygote.vm.capture(to.state, to.diff, { background: true });
    // It ends with the zygote, and until then writes to the draft.
    scope.add(() => Promise.allSettled([capturing]));
    return timed(unlessAborted(signal, capturing));
  };
  const captured = await capture();

  const record = parts.store.sandbox(sandbox.id);
  const meta: SnapshotMeta = {
    ...parent,
    tag,
    created_at_unix: now(),
    env: { ...parent.env, ...record?.env },
    parent: parent.tag,
    compacted: null,
    budget: record?.budget ?? null,
    guest_branch: sandbox.guestBranch,
    policy: record?.policy ?? parent.policy,
    // What was harmless to evaluate in the parent may not be in the middle of its work.
    rehearsal: null,
    branch: {
      sandbox: sandbox.id,
      mode,
      diff: mode !== 'full',
      pause_ms: pauseMs,
      phases_ms: phases.ms,
      capture_ms: captureMs,
      dirty_bytes: captured.dirtyBytes,
      physical_bytes: captured.physicalBytes,
    },
  };
  const { blocks } = await stat(to.upper);
  signal.throwIfAborted();
  admitBranch(parts.store, tag, meta.budget, captured.physicalBytes + blocks * 512);
  await publish(data, draft, meta);
  kept.release();
  return { meta, ...(zygote && { zygote }) };
}

async function wake(parts: Parts, sleeper: Sleeper, signal: AbortSignal, of: Parameters<typeof Zygote.wake>[2]) {
  try {
    return await Zygote.wake(parts, sleeper, of);
  } catch (cause) {
    signal.throwIfAborted();
    throw new Lost(`the sandbox is paused again, because its copy did not wake: ${asForkdError(cause).message}`);
  }
}

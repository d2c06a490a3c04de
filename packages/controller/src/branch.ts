import { link, rm, stat } from 'node:fs/promises';
import { Phases, type Twin } from '@forkd/engine';
import { type Captured, Scope } from '@forkd/host';
import { admitBranch } from './budget.js';
import { now } from './clock.js';
import { checkSpace, makeDraft, publish } from './draft.js';
import type { Parts } from './parts.js';
import type { Sandbox } from './sandbox.js';
import { type SnapshotMeta, snapshotFiles } from './snapshot.js';

/** Beside the pages that differ: the writable disk as far as it holds data, and the device state. */
const SPARE_MIB = 32;

/**
 * How the memory is taken. `live`: the VM stands still only while its process is forked, and the pages are read from the
 * frozen twin afterwards. `diff`: they are read while it stands still. `full`: all of its memory is.
 */
export type BranchMode = 'live' | 'diff' | 'full';

export interface BranchOptions {
  tag: string;
  mode: BranchMode;
  /** In mode full: takes the time of a diff as well, and throws it away. */
  measureDiff?: boolean;
  /** Called as soon as the sandbox runs again. */
  onResumed?: (pauseMs: number) => void;
  signal: AbortSignal;
}

/** Saves a sandbox as it is at one instant, under a new tag. Whatever happens, the sandbox goes on. */
export async function branchSandbox(parts: Parts, sandbox: Sandbox, options: BranchOptions): Promise<SnapshotMeta> {
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
  const memory = async (): Promise<Twin | Captured> => {
    if (mode === 'live') return scope.own(await vm.freeze(to.state, { phases }));
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
  const captured = 'capture' in taken ? await timed(taken.capture(to.diff, signal)) : taken;

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
  return meta;
}

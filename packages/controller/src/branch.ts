import { link, stat } from 'node:fs/promises';
import { Phases } from '@forkd/engine';
import { Scope } from '@forkd/host';
import { type BranchMode, Lost, TAKE } from './branch-memory.js';
import { admitBranch } from './budget.js';
import { now } from './clock.js';
import { checkSpace, makeDraft, publish } from './draft.js';
import type { Parts } from './parts.js';
import type { Report } from './progress.js';
import type { Sandbox } from './sandbox.js';
import { type SnapshotMeta, snapshotFiles } from './snapshot.js';
import type { Zygote } from './zygote.js';

/** Beside the pages that differ: the writable disk as far as it holds data, and the device state. */
const SPARE_MIB = 32;

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
  const taking = {
    parts,
    vm,
    network: parent.network,
    to,
    phases,
    scope,
    signal,
    wakes,
    measureDiff: !!options.measureDiff,
  };
  const { pauseMs, value: take } = await vm.guarded(
    async () => {
      // The disk is copied by another thread of the helper than the one that looks after the memory.
      const disk = phases.time('disk', helper.cloneFile(`${sandbox.directory}/upper.img`, to.upper));
      const memory = TAKE[mode](taking);
      const settled = Promise.allSettled([disk, memory]);
      // When nobody waits any longer, both may still be writing to the draft.
      scope.add(() => settled);
      await settled;
      await disk;
      return memory;
    },
    { signal, phases },
  );
  options.onResumed?.(pauseMs);
  await using kept = new Scope();
  const { captured, captureMs, zygote } = await take();
  if (zygote) kept.own(zygote);

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

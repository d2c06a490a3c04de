import { link, mkdir, rm, stat } from 'node:fs/promises';
import { Scope } from '@forkd/host';
import { admitBranch } from './budget.js';
import { now } from './clock.js';
import { checkSpace, makeDraft, publish } from './draft.js';
import type { Parts } from './parts.js';
import { type SnapshotMeta, snapshotFiles } from './snapshot.js';
import { savedSource } from './source.js';

/** Beside the memory: the writable disk and the device state. */
const SPARE_MIB = 64;

/** Writes a snapshot again with all of its memory in one file: nothing of its ancestors is kept alive by it. */
export async function compactSnapshot(
  parts: Parts,
  snapshot: SnapshotMeta,
  tag: string,
  signal: AbortSignal,
): Promise<SnapshotMeta> {
  const { data, helper } = parts;
  await checkSpace(data.own, snapshot.machine.memoryMib + SPARE_MIB);
  await using scope = new Scope();
  const draft = await makeDraft(data, tag, scope);
  const from = snapshotFiles(`${data.snapshots}/${snapshot.tag}`);
  const to = snapshotFiles(draft);
  await link(from.base, to.base);
  await helper.cloneFile(from.upper, to.upper);
  await writeMemory(parts, snapshot, `${draft}-vm`, to);
  const created_at_unix = now();
  const meta: SnapshotMeta = { ...snapshot, tag, created_at_unix, parent: null, compacted: snapshot.tag, branch: null };
  const { blocks } = await stat(to.memory);
  signal.throwIfAborted();
  admitBranch(parts.store, tag, snapshot.budget, blocks * 512);
  await publish(data, draft, meta);
  return meta;
}

async function writeMemory(
  parts: Parts,
  snapshot: SnapshotMeta,
  directory: string,
  to: { state: string; memory: string },
): Promise<void> {
  await using scope = new Scope();
  await mkdir(directory);
  scope.add(() => rm(directory, { recursive: true, force: true }));
  const source = savedSource(parts, snapshot, false);
  await parts.helper.cloneFile(source.upper, `${directory}/upper.img`);
  const vm = scope.own(await source.start({ directory, tied: true }));
  await vm.capture(to.state, to.memory, { full: true });
}

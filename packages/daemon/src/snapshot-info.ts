import type { Controller, SnapshotView } from '@forkd/controller';
import type { SharedWith, SnapshotInfo } from '@forkd/protocol';
import type { Caller } from './caller.js';

/** A snapshot as the API shows it. */
export function snapshotInfo(
  { data }: Controller,
  { meta, problem, ...record }: SnapshotView,
  caller?: Caller,
): SnapshotInfo {
  const isTold = caller?.role === 'admin' || caller?.name === record.owner;
  const branch = meta?.branch;
  const origin = branch?.sandbox ?? (meta?.compacted ? `compact:${meta.compacted}` : undefined);
  return {
    tag: record.tag,
    dir: `${data.snapshots}/${record.tag}`,
    created_at_unix: record.created_at,
    ...(origin !== undefined && { branched_from: origin }),
    ...(branch && {
      pause_ms: tenths(branch.pause_ms),
      pause_phases_ms: Object.fromEntries(Object.entries(branch.phases_ms).map(([part, ms]) => [part, tenths(ms)])),
      diff_ms: tenths(branch.capture_ms),
      diff_physical_bytes: branch.physical_bytes,
      diff_logical_bytes: branch.dirty_bytes,
    }),
    status: problem === undefined ? record.status : 'failed',
    bootable: meta !== undefined,
    owner: record.owner,
    ...(record.expires_at != null && { expires_at_unix: record.expires_at }),
    ...(record.pinned && { pinned: true }),
    ...(isTold && record.shared_with?.length && { shared_with: sharedWith(record.shared_with) }),
    ...(record.recipe !== null && { recipe: record.recipe }),
    ...(problem !== undefined && { warning: `snapshot is not bootable: ${problem}` }),
    ...(record.warning !== null && { warning: record.warning }),
    ...(meta && {
      engine: meta.engine.kind,
      accel: meta.machine.accel,
      vcpus: meta.machine.vcpus,
      memory_mib: meta.machine.memoryMib,
    }),
  };
}

function tenths(ms: number): number {
  return Math.round(ms * 10) / 10;
}

function sharedWith(names: string[]): SharedWith {
  return names.includes('*') ? 'all' : names;
}

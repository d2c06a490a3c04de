import type { Controller, SandboxRecord, SnapshotView } from '@forkd/controller';
import { ForkdError } from '@forkd/protocol';
import type { Caller } from './caller.js';

/** A user sees and touches what is their own; admins touch everything, readers see everything. */
export function mayTouch({ role, name }: Caller, { owner }: { owner: string }): boolean {
  return role !== 'user' || name === owner;
}

/** For listings: `undefined` where the caller sees those of all owners. */
export function ownerFilter({ role, name }: Caller): string | undefined {
  return role === 'user' ? name : undefined;
}

/** To those who may not see it, a sandbox does not exist. */
export function visibleSandbox(controller: Controller, caller: Caller, id: string): SandboxRecord {
  const record = controller.record(id);
  if (mayTouch(caller, record)) return record;
  throw noSandbox(id);
}

export function noSandbox(id: string): ForkdError {
  return new ForkdError('sandbox_not_found', `there is no sandbox ${JSON.stringify(id)}`);
}

/** A snapshot can be shared: who it is shared with reads it and spawns from it. */
export function mayRead(caller: Caller, view: SnapshotView): boolean {
  return mayTouch(caller, view) || ['*', caller.name].some((name) => view.shared_with?.includes(name));
}

/** To those who may not see it, a snapshot does not exist. */
export async function visibleSnapshot(controller: Controller, caller: Caller, tag: string): Promise<SnapshotView> {
  const view = await controller.viewSnapshot(tag);
  if (mayRead(caller, view)) return view;
  throw new ForkdError('snapshot_not_found', `there is no snapshot ${JSON.stringify(tag)}`);
}

/** One to be changed or removed. */
export async function ownSnapshot(controller: Controller, caller: Caller, tag: string): Promise<SnapshotView> {
  const view = await visibleSnapshot(controller, caller, tag);
  if (mayTouch(caller, view)) return view;
  throw new ForkdError('forbidden', `snapshot ${tag} is shared with ${caller.name}, and belongs to another`, {
    hint: 'Spawn from it, and branch that: the branch is your own.',
  });
}

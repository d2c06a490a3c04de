import type { ForkPlacement, Vm } from '@forkd/engine';
import type { Parts } from './parts.js';
import { type SnapshotMeta, snapshotFiles } from './snapshot.js';

export interface ChildPlacement extends ForkPlacement {
  /** Whose VM it will be. */
  sandbox?: string;
}

/** Where children of a snapshot come from. */
export interface Source {
  /** The writable disk that belongs to the memory children start with; each is given a clone of it before it starts. */
  readonly upper: string;
  /** The VM that children are forked from. */
  readonly vm?: Vm;
  /** Starts a child in a directory that holds its clone of `upper`, under the same name. */
  start(placement: ChildPlacement): Promise<Vm>;
}

/** Children that load the files of the snapshot, each for itself: works on every engine. */
export function savedSource({ data, engine, networks }: Parts, snapshot: SnapshotMeta, running = true): Source {
  const { memory, diff, state, base, upper } = snapshotFiles(`${data.snapshots}/${snapshot.tag}`);
  return {
    upper,
    start: (placement) =>
      networks.connect({ ...placement, wiring: snapshot.network }, (nic) =>
        engine.restore({
          machine: snapshot.machine,
          disks: [
            { path: base, readOnly: true },
            { path: `${placement.directory}/upper.img`, readOnly: false },
          ],
          memory,
          ...(snapshot.branch?.diff && { diff }),
          state,
          running,
          ...placement,
          ...nic,
        }),
      ),
  };
}

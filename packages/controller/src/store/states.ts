import type { SandboxState, SnapshotStatus } from '@forkd/protocol';

/** Every move there is. What is not in the table is refused, naming the state. */
export const SANDBOX_MOVES: Record<SandboxState, readonly SandboxState[]> = {
  starting: ['running', 'exited'],
  running: ['paused', 'stopping', 'exited'],
  paused: ['running', 'stopping', 'exited'],
  stopping: ['exited'],
  exited: [],
};

export const SNAPSHOT_MOVES: Record<SnapshotStatus, readonly SnapshotStatus[]> = {
  writing: ['ready', 'failed'],
  ready: ['failed'],
  failed: [],
};

/** The states from which `to` can be reached. */
export function comingFrom<State extends string>(moves: Record<State, readonly State[]>, to: State): State[] {
  return (Object.keys(moves) as State[]).filter((from) => moves[from].includes(to));
}

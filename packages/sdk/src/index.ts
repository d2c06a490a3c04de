export {
  type ErrorCode,
  type EvalResponse,
  type EventType,
  type ExecResponse,
  type FileInfo,
  ForkdError,
  type ForkdEvent,
  type LineageNode,
  type NetworkInfo,
  type NetworkPolicy,
  type PingResponse,
  type PortInfo,
  type RecipeInfo,
  type SandboxInfo,
  type SandboxState,
  type SnapshotInfo,
  type SnapshotInfoDetail,
} from '@forkd/protocol';
export { all } from './all.js';
export type { EventsOptions } from './events.js';
export type { ExecExit, ExecOutput } from './exec-stream.js';
export type { FileOptions, Files, WatchEvent } from './files.js';
export { Forkd } from './forkd.js';
export type { CallOptions, ForkdOptions } from './options.js';
export type { Pty, PtyExit, PtyOptions } from './pty.js';
export type {
  BranchOptions,
  EvalOptions,
  ExecOptions,
  Forked,
  ForkOptions,
  NetworkOptions,
  Sandbox,
  Spawned,
} from './sandbox.js';
export type { ListOptions, SpawnOptions } from './sandboxes.js';
export type { CreateSnapshotOptions, RemoveOptions, WaitOptions } from './snapshots.js';
export type { CreateWorkspaceOptions, Workspace } from './workspaces.js';

import type { SandboxState, SnapshotStatus } from '@forkd/protocol';
import type { KeptAnswer, RulesRecord, SandboxRecord, SnapshotRecord, WorkspaceRecord } from './records.js';

export interface SandboxFilter {
  owner?: string | undefined;
  states?: readonly SandboxState[] | undefined;
  snapshotTag?: string | undefined;
  /** All of these labels must be there. */
  metadata?: Record<string, string> | undefined;
  /** Only those after this one, in the order of the listing. */
  after?: string | undefined;
  limit?: number | undefined;
}

/** What names the VM of a sandbox. */
export type VmFields = Pick<SandboxRecord, 'place' | 'pid' | 'start_time' | 'snapshot_tag'>;

/** What sandboxes may take together; of disk, also what snapshots take. */
export interface Usage {
  count: number;
  memory_mib: number;
  cpus: number;
  disk_mib: number;
}

/** What must survive the program. Each call is durable when it returns. */
export interface Store {
  /** With the rules of each. */
  addSandboxes(records: SandboxRecord[], rules?: RulesRecord[]): void;
  /** Moves a sandbox to a state it can be reached in, else throws `state_conflict` naming the state it is in. */
  moveSandbox(id: string, to: SandboxState, changes?: Partial<SandboxRecord>): SandboxRecord;
  changeSandbox(id: string, changes: Partial<Pick<SandboxRecord, 'expires_at' | 'metadata' | 'policy'>>): SandboxRecord;
  /** Another VM becomes this sandbox, in one step; `state_conflict` unless it runs or is paused. */
  replaceVm(id: string, vm: VmFields): SandboxRecord;
  /** A running sandbox takes another id, in one step; whoever had that is forgotten. */
  promoteSandbox(id: string, to: string, changes: Pick<SandboxRecord, 'budget'>): SandboxRecord;
  countBranch(id: string, tag: string): void;
  sandbox(id: string): SandboxRecord | undefined;
  /** The one whose VM is in this place. */
  sandboxAt(place: string): SandboxRecord | undefined;
  /** Newest first. */
  sandboxes(filter?: SandboxFilter): SandboxRecord[];
  /** Of all that have not ended, or of those of one owner. */
  usage(owner?: string): Usage;
  /** How many sandboxes of a line there are beside the first. */
  lineForks(line: string): number;
  /** What the branches of a line take, also those being written. */
  lineBytes(line: string): number;
  /** Ids of those whose time is up. */
  expired(now: number): string[];
  removeSandbox(id: string): void;
  /** Forgets sandboxes that ended before the given time. */
  forgetSandboxes(endedBefore: number): void;

  /** Throws `tag_exists`, also while another writer has the tag; one that failed is replaced. */
  addSnapshot(record: SnapshotRecord): void;
  moveSnapshot(tag: string, to: SnapshotStatus, changes?: Partial<SnapshotRecord>): SnapshotRecord;
  changeSnapshot(tag: string, changes: Partial<Omit<SnapshotRecord, 'tag' | 'status'>>): void;
  snapshot(tag: string): SnapshotRecord | undefined;
  snapshots(): SnapshotRecord[];
  removeSnapshot(tag: string): void;

  /** Throws `state_conflict` if there is one of this name. */
  addWorkspace(record: WorkspaceRecord): void;
  changeWorkspace(name: string, changes: Partial<WorkspaceRecord>): WorkspaceRecord;
  workspace(name: string): WorkspaceRecord | undefined;
  workspaces(): WorkspaceRecord[];
  removeWorkspace(name: string): void;

  /** Those of a sandbox, or of a snapshot as `tag:TAG`. They are forgotten with it. */
  rules(subject: string): RulesRecord | undefined;
  setRules(record: RulesRecord): void;

  /** The answer kept under a key, after making an empty one if there is none. */
  keepAnswer(answer: KeptAnswer): { fresh: boolean; answer: KeptAnswer };
  completeAnswer(key: string, owner: string, status: number, body: string): void;
  dropAnswer(key: string, owner: string): void;
  forgetAnswers(before: number): void;
  /** Drops and returns those that were begun by a program that is no more. */
  takeUnfinished(): KeptAnswer[];

  /** Makes several changes durable together. Each is to catch what it throws itself. */
  together(changes: () => void): void;
  close(): void;
}

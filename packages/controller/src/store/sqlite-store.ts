import { chmodSync, closeSync, openSync } from 'node:fs';
import { ForkdError, SandboxId, type SandboxState, type SnapshotStatus } from '@forkd/protocol';
import Database from 'libsql';
import { z } from 'zod';
import { MIGRATIONS } from './migrations.js';
import { KeptAnswer, RulesRecord, SandboxRecord, SnapshotRecord, WorkspaceRecord } from './records.js';
import { comingFrom, SANDBOX_MOVES, SNAPSHOT_MOVES } from './states.js';
import type { SandboxFilter, Store, Usage, VmFields } from './store.js';

/** A listing never returns more than this at once. */
const MAX_ROWS = 10_000;

/** Pages of the log before it is written into the file and begun again. */
const LOG_PAGES = 256;
/** Kept for a full disk: more than the log, and as much in the file. */
const RESERVE_BYTES = 2 << 20;

const Sum = z.object({ sum: z.number() });
const UsageRow = z.object({ count: z.number(), memory_mib: z.number(), cpus: z.number(), disk_mib: z.number() });

/** The store in one SQLite file; `:memory:` for programs that keep nothing. */
export class SqliteStore implements Store {
  readonly #database: Database.Database;
  readonly #statements = new Map<string, Database.Statement>();

  constructor(file: string) {
    this.#database = open(file);
  }

  addSandboxes(records: SandboxRecord[], rules: RulesRecord[] = []): void {
    this.together(() => {
      for (const record of records) this.#insert('sandboxes', record);
      for (const record of rules) this.#insert('egress_rules', record);
    });
  }

  moveSandbox(id: string, to: SandboxState, changes: Partial<SandboxRecord> = {}): SandboxRecord {
    return this.#moveFrom(comingFrom(SANDBOX_MOVES, to), id, { ...changes, state: to });
  }

  changeSandbox(
    id: string,
    changes: Partial<Pick<SandboxRecord, 'expires_at' | 'metadata' | 'policy'>>,
  ): SandboxRecord {
    this.#update('sandboxes', 'id', id, changes);
    return this.#known(id);
  }

  replaceVm(id: string, vm: VmFields): SandboxRecord {
    return this.#moveFrom(['running', 'paused'], id, { ...vm, state: 'running' });
  }

  promoteSandbox(id: string, to: string, changes: Pick<SandboxRecord, 'budget'>): SandboxRecord {
    this.together(() => {
      this.removeSandbox(to);
      this.#moveFrom(['running'], id, { ...changes, promoted_from: id });
      this.#update('sandboxes', 'id', id, { id: to });
    });
    return this.#known(to);
  }

  countBranch(id: string, tag: string): void {
    this.#run('update sandboxes set branch_count = branch_count + 1, last_branch = ? where id = ?', [tag, id]);
  }

  sandbox(id: string): SandboxRecord | undefined {
    return this.#rows(SandboxRecord, 'select * from sandboxes where id = ?', [id])[0];
  }

  sandboxAt(place: string): SandboxRecord | undefined {
    return this.#rows(SandboxRecord, 'select * from sandboxes where place = ?', [place])[0];
  }

  sandboxes({ owner, states, snapshotTag, metadata = {}, after, limit }: SandboxFilter = {}): SandboxRecord[] {
    const where: string[] = [];
    const values: unknown[] = [];
    const and = (condition: string, ...more: unknown[]): void => {
      where.push(condition);
      values.push(...more);
    };
    if (owner !== undefined) and('owner = ?', owner);
    if (states) and(`state in (${states.map(() => '?').join()})`, ...states);
    if (snapshotTag !== undefined) and('snapshot_tag = ?', snapshotTag);
    for (const [key, value] of Object.entries(metadata)) and(`json_extract(metadata, ?) = ?`, `$."${key}"`, value);
    if (after !== undefined) and('(created_at, id) < (select created_at, id from sandboxes where id = ?)', after);
    const filter = where.length > 0 ? `where ${where.join(' and ')}` : '';
    const rows = `select * from sandboxes ${filter} order by created_at desc, id desc limit ?`;
    return this.#rows(SandboxRecord, rows, [...values, limit ?? MAX_ROWS]);
  }

  usage(owner?: string): Usage {
    const whose = owner === undefined ? '' : ' and owner = ?';
    const values = owner === undefined ? [] : [owner];
    const sql = `select count(*) as count,
      coalesce(sum(coalesce(memory_limit_mib, memory_mib)), 0) as memory_mib,
      coalesce(sum(coalesce(json_extract(limits, '$.cpu_limit'), vcpus)), 0) as cpus,
      coalesce(sum(disk_mib), 0) as disk_mib
      from sandboxes where state != 'exited'${whose}`;
    const saved = `select coalesce(sum(bytes), 0) as sum from snapshots where status != 'failed'${whose}`;
    const usage = this.#rows(UsageRow, sql, values)[0]!;
    return { ...usage, disk_mib: usage.disk_mib + Math.ceil(this.#rows(Sum, saved, values)[0]!.sum / 2 ** 20) };
  }

  lineForks(line: string): number {
    const sql = `select count(*) as sum from sandboxes where state != 'exited'
      and json_extract(budget, '$.line') = ? and json_extract(budget, '$.level') > 0`;
    return this.#rows(Sum, sql, [line])[0]!.sum;
  }

  lineBytes(line: string): number {
    const sql = "select coalesce(sum(bytes), 0) as sum from snapshots where status != 'failed' and line = ?";
    return this.#rows(Sum, sql, [line])[0]!.sum;
  }

  expired(now: number): string[] {
    const rows = "select id from sandboxes where expires_at <= ? and state in ('running', 'paused')";
    return this.#rows(z.object({ id: SandboxId }), rows, [now]).map(({ id }) => id);
  }

  removeSandbox(id: string): void {
    this.#run('delete from sandboxes where id = ?', [id]);
  }

  forgetSandboxes(endedBefore: number): void {
    this.#run("delete from sandboxes where state = 'exited' and ended_at < ?", [endedBefore]);
  }

  addSnapshot(record: SnapshotRecord): void {
    this.#run("delete from snapshots where tag = ? and status = 'failed'", [record.tag]);
    const known = this.snapshot(record.tag);
    if (known?.status === 'writing')
      throw new ForkdError('state_conflict', `snapshot ${record.tag} is being written already`, {
        details: { state: known.status },
      });
    if (known) throw new ForkdError('tag_exists', `snapshot ${record.tag} exists already`);
    this.#insert('snapshots', record);
  }

  moveSnapshot(tag: string, to: SnapshotStatus, changes: Partial<SnapshotRecord> = {}): SnapshotRecord {
    const from = comingFrom(SNAPSHOT_MOVES, to);
    const moved = this.#update('snapshots', 'tag', tag, { ...changes, status: to }, 'status', from);
    const record = this.snapshot(tag);
    if (!record) throw new ForkdError('snapshot_not_found', `there is no snapshot ${tag}`);
    if (moved) return record;
    throw new ForkdError('state_conflict', `snapshot ${tag} is ${record.status}`, {
      details: { state: record.status },
    });
  }

  changeSnapshot(tag: string, changes: Partial<SnapshotRecord>): void {
    this.#update('snapshots', 'tag', tag, changes);
  }

  snapshot(tag: string): SnapshotRecord | undefined {
    return this.#rows(SnapshotRecord, 'select * from snapshots where tag = ?', [tag])[0];
  }

  snapshots(): SnapshotRecord[] {
    return this.#rows(SnapshotRecord, 'select * from snapshots order by created_at, tag', []);
  }

  removeSnapshot(tag: string): void {
    this.#run('delete from snapshots where tag = ?', [tag]);
  }

  addWorkspace(record: WorkspaceRecord): void {
    if (this.workspace(record.name))
      throw new ForkdError('state_conflict', `workspace ${record.name} exists already`, {
        hint: 'Choose another name, or delete it first.',
      });
    this.#insert('workspaces', record);
  }

  changeWorkspace(name: string, changes: Partial<WorkspaceRecord>): WorkspaceRecord {
    this.#update('workspaces', 'name', name, changes);
    return this.workspace(name)!;
  }

  workspace(name: string): WorkspaceRecord | undefined {
    return this.#rows(WorkspaceRecord, 'select * from workspaces where name = ?', [name])[0];
  }

  workspaces(): WorkspaceRecord[] {
    return this.#rows(WorkspaceRecord, 'select * from workspaces order by created_at, name', []);
  }

  removeWorkspace(name: string): void {
    this.#run('delete from workspaces where name = ?', [name]);
  }

  rules(subject: string): RulesRecord | undefined {
    return this.#rows(RulesRecord, 'select * from egress_rules where subject = ?', [subject])[0];
  }

  setRules({ subject, owner, rules }: RulesRecord): void {
    const sql = 'insert or replace into egress_rules (subject, owner, rules) values (?, ?, ?)';
    this.#run(sql, [subject, owner, JSON.stringify(rules)]);
  }

  keepAnswer(answer: KeptAnswer): { fresh: boolean; answer: KeptAnswer } {
    const known = 'select * from answers where owner = ? and key = ?';
    const [kept] = this.#rows(KeptAnswer, known, [answer.owner, answer.key]);
    if (kept) return { fresh: false, answer: kept };
    this.#insert('answers', answer);
    return { fresh: true, answer };
  }

  completeAnswer(key: string, owner: string, status: number, body: string): void {
    this.#run('update answers set status = ?, body = ? where owner = ? and key = ?', [status, body, owner, key]);
  }

  dropAnswer(key: string, owner: string): void {
    this.#run('delete from answers where owner = ? and key = ?', [owner, key]);
  }

  forgetAnswers(before: number): void {
    this.#run('delete from answers where created_at < ?', [before]);
  }

  takeUnfinished(): KeptAnswer[] {
    const unfinished = this.#rows(KeptAnswer, 'select * from answers where status is null', []);
    this.#run('delete from answers where status is null', []);
    return unfinished;
  }

  together(changes: () => void): void {
    const database = this.#database;
    database.exec('begin immediate');
    try {
      changes();
      orDiskFull(() => database.exec('commit'));
    } catch (thrown) {
      // A full disk has undone everything already.
      if (database.inTransaction) database.exec('rollback');
      throw thrown;
    }
  }

  close(): void {
    this.#database.close();
  }

  #moveFrom(from: readonly SandboxState[], id: string, changes: Partial<SandboxRecord>): SandboxRecord {
    if (this.#update('sandboxes', 'id', id, changes, 'state', from)) return this.#known(id);
    const { state } = this.#known(id);
    throw new ForkdError('state_conflict', `sandbox ${id} is ${state}`, { details: { state, allowed_from: from } });
  }

  #known(id: string): SandboxRecord {
    const record = this.sandbox(id);
    if (!record) throw new ForkdError('sandbox_not_found', `there is no sandbox ${id}`);
    return record;
  }

  #insert(table: string, record: object): void {
    const names = Object.keys(record);
    this.#run(`insert into ${table} (${names.join()}) values (${names.map(() => '?').join()})`, columns(record));
  }

  /** Column names are keys of our own records, never input. `true` if a row was changed. */
  #update(
    table: string,
    key: string,
    id: string,
    changes: object,
    guard?: string,
    allowed: readonly string[] = [],
  ): boolean {
    const names = Object.keys(changes);
    const guarded = guard ? ` and ${guard} in (${allowed.map(() => '?').join()})` : '';
    const sql = `update ${table} set ${names.map((name) => `${name} = ?`).join()} where ${key} = ?${guarded}`;
    return this.#run(sql, [...columns(changes), id, ...allowed]) > 0;
  }

  /** The texts are few; the values are always bound. */
  #prepared(sql: string): Database.Statement {
    let statement = this.#statements.get(sql);
    if (!statement) {
      statement = this.#database.prepare(sql);
      this.#statements.set(sql, statement);
    }
    return statement;
  }

  #run(sql: string, values: unknown[]): number {
    return orDiskFull(() => this.#prepared(sql).run(...values).changes);
  }

  #rows<S extends z.ZodType>(schema: S, sql: string, values: unknown[]): z.output<S>[] {
    return (this.#prepared(sql).all(...values) as unknown[]).map((row) => schema.parse(row));
  }
}

function columns(record: object): unknown[] {
  return Object.values(record).map((value) =>
    value !== null && typeof value === 'object' ? JSON.stringify(value) : value,
  );
}

/** A database that is damaged, or newer than this program, is left as it is: what it says may still be wanted. */
function open(file: string): Database.Database {
  try {
    if (file !== ':memory:') keepPrivate(file);
    const database = new Database(file);
    database.pragma('journal_mode = WAL');
    database.pragma('synchronous = FULL');
    const [check] = database.pragma('quick_check') as { quick_check: string }[];
    if (check?.quick_check !== 'ok') throw new Error(check?.quick_check ?? 'no answer to quick_check');
    migrate(database);
    if (file !== ':memory:') reserve(database);
    return database;
  } catch (cause) {
    if (cause instanceof ForkdError) throw cause;
    throw new ForkdError('host_unfit', `the database ${file} cannot be used: ${(cause as Error).message}`, {
      cause,
      hint: `Move ${file} (and its -wal and -shm) away and start again: snapshots are found on disk, sandboxes are lost.`,
    });
  }
}

/** It holds secrets; what SQLite makes beside it has the same mode. */
function keepPrivate(file: string): void {
  closeSync(openSync(file, 'a', 0o600));
  chmodSync(file, 0o600);
}

/** Takes room and gives it back to the file, not to the disk: what ends while the disk is full can be written down. */
function reserve(database: Database.Database): void {
  database.pragma(`wal_autocheckpoint = ${LOG_PAGES}`);
  try {
    database.transaction(() => {
      database.exec('create table reserve (room blob)');
      database.exec(`insert into reserve values (zeroblob(${RESERVE_BYTES}))`);
    })();
    database.exec('drop table reserve');
    database.pragma('wal_checkpoint(restart)');
  } catch (thrown) {
    if (!isDiskFull(thrown)) throw thrown;
  }
}

function orDiskFull<T>(write: () => T): T {
  try {
    return write();
  } catch (thrown) {
    if (isDiskFull(thrown)) throw new ForkdError('disk_full', 'the disk is full', { cause: thrown });
    throw thrown;
  }
}

function isDiskFull(thrown: unknown): boolean {
  return (thrown as { code?: unknown }).code === 'SQLITE_FULL';
}

function migrate(database: Database.Database): void {
  const [row] = database.pragma('user_version') as { user_version: number }[];
  const version = row?.user_version ?? 0;
  if (version > MIGRATIONS.length)
    throw new ForkdError('host_unfit', `the database was written by a newer forkd (schema ${version})`, {
      hint: 'Start the newer version, or use another data directory.',
    });
  database.transaction(() => {
    for (const migration of MIGRATIONS.slice(version)) database.exec(migration);
    database.pragma(`user_version = ${MIGRATIONS.length}`);
  })();
}

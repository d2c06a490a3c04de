import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { newSandboxId, type SandboxState } from '@forkd/protocol';
import Database from 'libsql';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { SandboxRecord } from './records.js';
import { SqliteStore } from './sqlite-store.js';
import { SANDBOX_MOVES } from './states.js';

const root = mkdtempSync(`${tmpdir()}/forkd-store-`);
afterAll(() => rmSync(root, { recursive: true }));
let files = 0;
const file = (): string => `${root}/${files++}.db`;

function sandbox(changes: Partial<SandboxRecord> = {}): SandboxRecord {
  const id = newSandboxId();
  return {
    id,
    place: id,
    snapshot_tag: 'base',
    owner: 'ann',
    state: 'starting',
    pid: null,
    start_time: null,
    created_at: 1000,
    expires_at: null,
    ended_at: null,
    exit_reason: null,
    request_key: null,
    promoted_from: null,
    budget: null,
    guest_branch: 0,
    policy: { preset: 'none', allow: [], deny: [] },
    metadata: {},
    env: {},
    branch_count: 0,
    last_branch: null,
    memory_limit_mib: null,
    limits: {},
    vcpus: 1,
    memory_mib: 256,
    disk_mib: 64,
    ...changes,
  };
}

describe('sandboxes', () => {
  it('what was written is there when the file is opened again', () => {
    const path = file();
    const first = new SqliteStore(path);
    const record = sandbox({ metadata: { job: '7', 'a.b/c': 'x"y' } });
    first.addSandboxes([record]);
    first.moveSandbox(record.id, 'running', { pid: 42, start_time: 7 });
    first.close();
    const second = new SqliteStore(path);
    expect(second.sandbox(record.id)).toEqual({ ...record, state: 'running', pid: 42, start_time: 7 });
    second.close();
  });

  it('rules go with what they belong to, in a file for nobody else', () => {
    const path = file();
    const store = new SqliteStore(path);
    const [source, child] = [sandbox({ state: 'running' }), sandbox({ state: 'running' })] as const;
    const rules = { 'a.example': { headers: { 'x-key': 'secret' } } };
    const of = (subject: string) => ({ subject, owner: 'ann', rules });
    store.addSandboxes([source, child], [of(source.id), of(child.id)]);
    store.setRules({ ...of(child.id), rules: {} });
    store.promoteSandbox(child.id, source.id, { budget: null });
    expect([store.rules(source.id)?.rules, store.rules(child.id)]).toEqual([{}, undefined]);
    expect(store.sandboxAt(child.place)?.id).toBe(source.id);
    store.removeSandbox(source.id);
    expect(store.rules(source.id)).toBeUndefined();
    const snapshot = {
      tag: 'kept',
      owner: 'ann',
      status: 'ready',
      created_at: 1,
      recipe: null,
      warning: null,
    } as const;
    store.addSnapshot(snapshot);
    store.setRules(of('tag:kept'));
    store.removeSnapshot('kept');
    expect(store.rules('tag:kept')).toBeUndefined();
    for (const end of ['', '-wal', '-shm']) expect(statSync(path + end).mode & 0o077).toBe(0);
    store.close();
  });

  it('only moves of the table are made, and a refusal names the state', () => {
    const store = new SqliteStore(':memory:');
    const states = Object.keys(SANDBOX_MOVES) as SandboxState[];
    for (const from of states)
      for (const to of states) {
        const record = sandbox({ state: from });
        store.addSandboxes([record]);
        if (SANDBOX_MOVES[from].includes(to)) expect(store.moveSandbox(record.id, to).state).toBe(to);
        else
          expect(() => store.moveSandbox(record.id, to)).toThrowError(
            expect.objectContaining({ code: 'state_conflict', message: expect.stringContaining(from) }),
          );
      }
    expect(() => store.moveSandbox(newSandboxId(), 'running')).toThrowError(
      expect.objectContaining({ code: 'sandbox_not_found' }),
    );
  });

  it('listings are filtered, newest first, and paged without gaps or repeats', () => {
    const store = new SqliteStore(':memory:');
    const records = Array.from({ length: 25 }, (_, index) =>
      sandbox({
        created_at: 1000 + Math.floor(index / 3),
        owner: index % 2 ? 'ann' : 'bob',
        metadata: { n: `${index % 5}` },
      }),
    );
    store.addSandboxes(records);
    const seen: string[] = [];
    for (let after: string | undefined; ; after = seen.at(-1)) {
      const page = store.sandboxes({ after, limit: 4 });
      seen.push(...page.map(({ id }) => id));
      if (page.length < 4) break;
    }
    expect(seen).toEqual(store.sandboxes().map(({ id }) => id));
    expect(new Set(seen).size).toBe(25);
    expect(store.sandboxes({ owner: 'ann' }).length).toBe(12);
    expect(store.sandboxes({ metadata: { n: '3' } }).length).toBe(5);
    expect(store.sandboxes({ states: ['running'] })).toEqual([]);
  });

  it('the ended are forgotten in time, the living never', () => {
    const store = new SqliteStore(':memory:');
    store.addSandboxes([
      sandbox({ state: 'exited', ended_at: 10 }),
      sandbox({ state: 'exited', ended_at: 90 }),
      sandbox(),
    ]);
    store.forgetSandboxes(50);
    expect(store.sandboxes().length).toBe(2);
  });

  it('a thousand of them are listed in a moment', () => {
    const store = new SqliteStore(':memory:');
    store.addSandboxes(Array.from({ length: 1000 }, () => sandbox()));
    expect(store.sandboxes().length).toBe(1000);
  });
});

describe('snapshots', () => {
  const snapshot = {
    tag: 'base',
    owner: 'ann',
    status: 'writing',
    created_at: 1,
    recipe: null,
    warning: null,
  } as const;

  it('a tag has one writer', () => {
    const store = new SqliteStore(':memory:');
    store.addSnapshot(snapshot);
    expect(() => store.addSnapshot(snapshot)).toThrowError(expect.objectContaining({ code: 'state_conflict' }));
    expect(store.moveSnapshot('base', 'ready').status).toBe('ready');
    expect(() => store.addSnapshot(snapshot)).toThrowError(expect.objectContaining({ code: 'tag_exists' }));
    expect(() => store.moveSnapshot('base', 'ready')).toThrowError(expect.objectContaining({ code: 'state_conflict' }));
    store.removeSnapshot('base');
    expect(store.snapshots()).toEqual([]);
  });
});

describe('answers kept for repeated requests', () => {
  it('belong to one owner each', () => {
    const store = new SqliteStore(':memory:');
    const answer = { key: 'k', owner: 'ann', request_hash: 'h', status: null, body: null, created_at: 1 };
    expect(store.keepAnswer(answer).fresh).toBe(true);
    store.completeAnswer('k', 'ann', 201, '[]');
    expect(store.keepAnswer(answer)).toMatchObject({ fresh: false, answer: { status: 201, body: '[]' } });
    expect(store.keepAnswer({ ...answer, owner: 'bob' }).fresh).toBe(true);
  });
});

describe('a full disk', () => {
  const disk = `${root}/disk`;
  beforeAll(() => {
    mkdirSync(disk);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=16m', 'forkd-test', disk]);
  });
  afterAll(() => execFileSync('umount', ['--lazy', disk]));

  it('what ends can be written down for long; then it is said that the disk is full', () => {
    const store = new SqliteStore(`${disk}/full.db`);
    const records = Array.from({ length: 1000 }, () => sandbox());
    store.addSandboxes(records);
    spawnSync('dd', ['if=/dev/zero', `of=${disk}/filler`, 'bs=4k']);
    const long = 'x'.repeat(1000);
    for (const { id } of records) store.moveSandbox(id, 'exited', { ended_at: 1, exit_reason: long });
    for (const { id } of records) store.removeSandbox(id);
    const fill = (): void => {
      for (;;) store.addSandboxes([sandbox({ exit_reason: long })]);
    };
    expect(fill).toThrowError(expect.objectContaining({ code: 'disk_full' }));
    rmSync(`${disk}/filler`);
    store.addSandboxes([sandbox()]);
    store.close();
  });

  it('of a program that starts then is no reason not to start', () => {
    const path = `${disk}/late.db`;
    new SqliteStore(path).close();
    spawnSync('dd', ['if=/dev/zero', `of=${disk}/filler`, 'bs=4k']);
    truncateSync(`${disk}/filler`, statSync(`${disk}/filler`).size - 200_000);
    new SqliteStore(path).close();
  });
});

describe('a file that cannot be trusted', () => {
  it('is refused with the way out, and left as it is', () => {
    const path = file();
    writeFileSync(path, 'this is not a database, but somebody may still want it'.repeat(100));
    const before = readFileSync(path);
    expect(() => new SqliteStore(path)).toThrowError(
      expect.objectContaining({ code: 'host_unfit', hint: expect.stringContaining('Move') }),
    );
    expect(readFileSync(path)).toEqual(before);
  });

  it('is refused when a newer version wrote it', () => {
    const path = file();
    new SqliteStore(path).close();
    const database = new Database(path);
    database.pragma('user_version = 999');
    database.close();
    expect(() => new SqliteStore(path)).toThrowError(
      expect.objectContaining({ message: expect.stringContaining('newer') }),
    );
  });
});

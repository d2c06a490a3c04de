import type { SandboxInfo, SnapshotInfo, WorkspaceInfo } from '@forkd/protocol';
import type { DaemonProcess } from './daemon-process.js';

/** More running VMs than this are not needed to be in the middle of something. */
const MOST_SANDBOXES = 10;
const MOST_TAGS = 3;
const MOST_BRANCHES = 6;
const WORKSPACES = ['desk', 'bench'];

/** What the daemon has promised: an answer that came is a promise, one that did not come is none. */
export class Promised {
  readonly sandboxes = new Set<string>();
  readonly tags = new Set<string>();
  readonly branches = new Set<string>();
  /** What a workspace has written down last, and can therefore not have forgotten. */
  readonly workspaces = new Map<string, number>();
}

/** Callers of a daemon that may die at any moment; they note what they have been promised. */
export class Load {
  #running = true;
  #tags = 0;
  readonly done = {
    spawned: 0,
    execs: 0,
    killed: 0,
    created: 0,
    removed: 0,
    branched: 0,
    forked: 0,
    promoted: 0,
    rolled_back: 0,
    suspended: 0,
  };

  constructor(
    private readonly daemon: DaemonProcess,
    private readonly promised: Promised,
    private readonly round: number,
  ) {}

  /** Settles when all callers have stopped. */
  async run(): Promise<void> {
    const callers = [this.#spawn, this.#spawn, this.#exec, this.#exec, this.#kill, this.#create, this.#remove];
    const branchers = [this.#branch, this.#branch, this.#branch, this.#fork, this.#rollBack, this.#drop];
    const workers = WORKSPACES.map((name) => () => this.#work(name));
    await Promise.all([...callers, ...branchers, ...workers].map((caller) => this.#again(caller)));
  }

  stop(): void {
    this.#running = false;
  }

  async #again(caller: () => Promise<void>): Promise<void> {
    while (this.#running) {
      await caller.call(this).catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, 20 + Math.random() * 100));
    }
  }

  readonly #spawn = async (): Promise<void> => {
    if (this.promised.sandboxes.size >= MOST_SANDBOXES) return;
    const body = { snapshot_tag: 'base', n: 1 + Math.floor(Math.random() * 4) };
    const { status, json } = await call(this.daemon, 'POST', '/v1/sandboxes', body);
    if (status !== 201) return;
    for (const { id } of json as SandboxInfo[]) this.promised.sandboxes.add(id);
    this.done.spawned += (json as SandboxInfo[]).length;
  };

  readonly #exec = async (): Promise<void> => {
    const id = oneOf(this.promised.sandboxes);
    if (!id) return;
    await call(this.daemon, 'POST', `/v1/sandboxes/${id}/exec`, { args: ['hostname'] });
    this.done.execs++;
  };

  readonly #kill = async (): Promise<void> => {
    const id = oneOf(this.promised.sandboxes);
    if (!id || this.promised.sandboxes.size < MOST_SANDBOXES / 2) return;
    // From here on it may be there or not.
    this.promised.sandboxes.delete(id);
    await call(this.daemon, 'DELETE', `/v1/sandboxes/${id}`);
    this.done.killed++;
  };

  readonly #create = async (): Promise<void> => {
    if (this.promised.tags.size >= MOST_TAGS) return;
    const tag = `t-${this.round}-${this.#tags++}`;
    const { status } = await call(this.daemon, 'POST', '/v1/snapshots', { tag, recipe: 'plain' });
    if (status !== 201) return;
    this.promised.tags.add(tag);
    this.done.created++;
  };

  readonly #remove = async (): Promise<void> => {
    const tag = oneOf(this.promised.tags);
    if (!tag || this.promised.tags.size < MOST_TAGS) return;
    this.promised.tags.delete(tag);
    await call(this.daemon, 'DELETE', `/v1/snapshots/${tag}`);
    this.done.removed++;
  };

  readonly #branch = async (): Promise<void> => {
    const id = oneOf(this.promised.sandboxes);
    if (!id || this.promised.branches.size >= MOST_BRANCHES) return;
    const tag = `b-${this.round}-${this.#tags++}`;
    const how = oneOf(new Set([{ wait: true }, { wait: false }, { mode: 'diff' }, { mode: 'full' }]));
    const { status } = await call(this.daemon, 'POST', `/v1/sandboxes/${id}/branch`, { tag, ...how });
    if (status !== 201 && status !== 202) return;
    // With 202 only the source is promised: it is there still, and it runs.
    if (status === 201) this.promised.branches.add(tag);
    this.done.branched++;
  };

  readonly #fork = async (): Promise<void> => {
    const id = oneOf(this.promised.sandboxes);
    const { sandboxes, branches } = this.promised;
    if (!id || branches.size >= MOST_BRANCHES || sandboxes.size >= MOST_SANDBOXES) return;
    const { status, json } = await call(this.daemon, 'POST', `/v1/sandboxes/${id}/fork`, { n: 2 });
    if (status !== 201) return;
    const { snapshot, results } = json as { snapshot: SnapshotInfo; results: { sandbox?: SandboxInfo }[] };
    branches.add(snapshot.tag);
    const [first, ...others] = results.flatMap(({ sandbox }) => (sandbox ? [sandbox.id] : []));
    for (const other of others) sandboxes.add(other);
    this.done.forked++;
    // The first takes the place of the source, whose id is promised whoever has it.
    const promoted = await call(this.daemon, 'POST', `/v1/sandboxes/${first}/promote`);
    if (promoted.status === 200) this.done.promoted++;
  };

  readonly #rollBack = async (): Promise<void> => {
    const id = oneOf(this.promised.sandboxes);
    if (!id) return;
    const { status } = await call(this.daemon, 'POST', `/v1/sandboxes/${id}/rollback`, { snapshot_tag: 'base' });
    if (status === 200) this.done.rolled_back++;
  };

  readonly #drop = async (): Promise<void> => {
    const tag = oneOf(this.promised.branches);
    if (!tag || this.promised.branches.size < MOST_BRANCHES) return;
    this.promised.branches.delete(tag);
    const { status } = await call(this.daemon, 'DELETE', `/v1/snapshots/${tag}?force=true`);
    // Its children still run.
    if (status === 409) this.promised.branches.add(tag);
  };

  /** Writes down one more number, and is put away and taken out again. */
  async #work(name: string): Promise<void> {
    const { workspaces } = this.promised;
    if (!workspaces.has(name)) {
      const { status } = await call(this.daemon, 'POST', '/v1/workspaces', { name, snapshot_tag: 'base' });
      if (status === 201) workspaces.set(name, 0);
      return;
    }
    const { json } = await call(this.daemon, 'GET', `/v1/workspaces/${name}`);
    const { live_sandbox_id: id } = json as WorkspaceInfo;
    const next = workspaces.get(name)! + 1;
    if (id) {
      // At once: a command whose client is gone is ended wherever it is.
      const args = ['sh', '-c', `echo ${next} > /root/next; mv /root/next /root/number`];
      const { status } = await call(this.daemon, 'POST', `/v1/sandboxes/${id}/exec`, { args });
      if (status === 200) workspaces.set(name, next);
    }
    const turn = id ? 'suspend' : 'resume';
    const { status } = await call(this.daemon, 'POST', `/v1/workspaces/${name}/${turn}`);
    if (status === 200 && id) this.done.suspended++;
  }
}

export async function call(
  daemon: DaemonProcess,
  method: string,
  path: string,
  body?: object,
): Promise<{ status: number; json: unknown }> {
  const reply = await fetch(daemon.url + path, {
    method,
    ...(body && { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
    signal: AbortSignal.timeout(120_000),
  });
  const text = await reply.text();
  return { status: reply.status, json: text === '' ? null : JSON.parse(text) };
}

function oneOf<T>(set: Set<T>): T | undefined {
  return [...set][Math.floor(Math.random() * set.size)];
}

import type { SandboxInfo } from '@forkd/protocol';
import type { DaemonProcess } from './daemon-process.js';

/** More running VMs than this are not needed to be in the middle of something. */
const MOST_SANDBOXES = 10;
const MOST_TAGS = 3;

/** What the daemon has promised: an answer that came is a promise, one that did not come is none. */
export class Promised {
  readonly sandboxes = new Set<string>();
  readonly tags = new Set<string>();
}

/** Callers of a daemon that may die at any moment; they note what they have been promised. */
export class Load {
  #running = true;
  #tags = 0;
  readonly done = { spawned: 0, execs: 0, killed: 0, created: 0, removed: 0 };

  constructor(
    private readonly daemon: DaemonProcess,
    private readonly promised: Promised,
    private readonly round: number,
  ) {}

  /** Settles when all callers have stopped. */
  async run(): Promise<void> {
    const callers = [this.#spawn, this.#spawn, this.#exec, this.#exec, this.#kill, this.#create, this.#remove];
    await Promise.all(callers.map((caller) => this.#again(caller)));
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

function oneOf(set: Set<string>): string | undefined {
  return [...set][Math.floor(Math.random() * set.size)];
}

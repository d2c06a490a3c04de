import { setTimeout as sleep } from 'node:timers/promises';
import type {
  ChangeSnapshot,
  CreateSnapshot,
  ForkdEvent,
  GcReport,
  SharedWith,
  SnapshotInfo,
  SnapshotInfoDetail,
} from '@forkd/protocol';
import type { Connection } from './connection.js';
import { followEvents } from './events.js';
import type { CallOptions } from './options.js';

export type CreateSnapshotOptions = Pick<CreateSnapshot, 'tag'> &
  Partial<CreateSnapshot> &
  CallOptions & { onProgress?: (event: ForkdEvent) => void };

export interface RemoveOptions extends CallOptions {
  /** The snapshots that depend on it go too. */
  cascade?: boolean | undefined;
  force?: boolean | undefined;
}

export interface WaitOptions extends CallOptions {
  onProgress?: (event: ForkdEvent) => void;
}

const WAIT_POLL_MS = 100;
/** Building an image for the first time downloads packages. */
const CREATE_TIMEOUT_MS = 3_600_000;
const COMPACT_TIMEOUT_MS = 900_000;

export class Snapshots {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  async list(call: CallOptions = {}): Promise<SnapshotInfo[]> {
    return this.#connection.call('listSnapshots', call);
  }

  async get(tag: string, call: CallOptions = {}): Promise<SnapshotInfo> {
    return this.#connection.call('getSnapshot', { ...call, params: { tag } });
  }

  async info(tag: string, call: CallOptions = {}): Promise<SnapshotInfoDetail> {
    return this.#connection.call('snapshotInfo', { ...call, params: { tag } });
  }

  /** Resolves when it is ready, or at once with `wait: false`. */
  async create(options: CreateSnapshotOptions): Promise<SnapshotInfo> {
    const { signal, timeout_ms = CREATE_TIMEOUT_MS, onProgress, ...body } = options;
    const done = new AbortController();
    if (onProgress) void this.#report(body.tag, done.signal, onProgress);
    try {
      return await this.#connection.call('createSnapshot', { signal, timeout_ms, body });
    } finally {
      done.abort();
    }
  }

  /** Resolves when it is not being written any more: its `status` is then `ready` or `failed`. */
  async wait(tag: string, { onProgress, ...call }: WaitOptions = {}): Promise<SnapshotInfo> {
    const done = new AbortController();
    if (onProgress) void this.#report(tag, done.signal, onProgress);
    try {
      for (;;) {
        const info = await this.get(tag, call);
        if (info.status !== 'writing') return info;
        await sleep(WAIT_POLL_MS);
      }
    } finally {
      done.abort();
    }
  }

  async remove(tag: string, { cascade, force, ...call }: RemoveOptions = {}): Promise<void> {
    const query = { cascade: cascade || undefined, force: force || undefined };
    await this.#connection.call('deleteSnapshot', { ...call, params: { tag }, query });
  }

  /** Pins it, or says when it may be removed. */
  async update(tag: string, change: ChangeSnapshot, call: CallOptions = {}): Promise<SnapshotInfo> {
    return this.#connection.call('changeSnapshot', { ...call, params: { tag }, body: change });
  }

  /** Lets others read it and spawn from it, by the names of their tokens; an empty list takes that back. */
  async share(tag: string, whom: SharedWith, call: CallOptions = {}): Promise<SnapshotInfo> {
    return this.#connection.call('shareSnapshot', { ...call, params: { tag }, body: { with: whom } });
  }

  /** Removes what is not to be kept any longer; with `dry_run` only says what that is. */
  async gc({ dry_run = false, ...call }: CallOptions & { dry_run?: boolean } = {}): Promise<GcReport> {
    return this.#connection.call('gc', { timeout_ms: COMPACT_TIMEOUT_MS, ...call, body: { dry_run } });
  }

  /** Flattens a chain of snapshots into a new one. */
  async compact(tag: string, to: string, call: CallOptions = {}): Promise<SnapshotInfo> {
    return this.#connection.call('compactSnapshot', {
      timeout_ms: COMPACT_TIMEOUT_MS,
      ...call,
      params: { tag },
      body: { to },
    });
  }

  async #report(tag: string, signal: AbortSignal, onProgress: (event: ForkdEvent) => void): Promise<void> {
    try {
      for await (const event of followEvents(this.#connection, { types: ['progress'], snapshot_tag: tag, signal }))
        onProgress(event);
    } catch {
      // Progress is a comfort: without it the call itself still tells how it ended.
    }
  }
}

import { Readable } from 'node:stream';
import { FileEvent, type FileInfo, ForkdError } from '@forkd/protocol';
import type { Connection } from './connection.js';
import type { CallOptions } from './options.js';
import { eventData, serverSentEvents } from './server-sent-events.js';

export interface FileOptions extends CallOptions {
  user?: string | undefined;
}

/** A change below a watched folder. */
export interface WatchEvent extends FileEvent {
  /** create, write, remove, rename or chmod */
  type: string;
}

const TRANSFER_TIMEOUT_MS = 600_000;

/** The files of one sandbox. */
export class Files {
  readonly #connection: Connection;
  readonly #params: { id: string };

  constructor(connection: Connection, id: string) {
    this.#connection = connection;
    this.#params = { id };
  }

  /** The content as it comes. */
  async read(path: string, { user, ...call }: FileOptions = {}): Promise<Readable> {
    return this.#connection.open('readFile', { ...call, params: this.#params, query: { path, user } });
  }

  /** Makes the folders above it; what was there is replaced. */
  async write(path: string, bytes: Readable | Uint8Array | string, options: FileOptions = {}): Promise<void> {
    const { user, ...call } = options;
    const input = { timeout_ms: TRANSFER_TIMEOUT_MS, ...call, params: this.#params, query: { path, user }, bytes };
    try {
      await this.#connection.call('writeFile', input);
    } finally {
      if (bytes instanceof Readable) bytes.destroy();
    }
  }

  async list(path: string, { user, depth, ...call }: FileOptions & { depth?: number } = {}): Promise<FileInfo[]> {
    return this.#connection.call('listFiles', { ...call, params: this.#params, query: { path, user, depth } });
  }

  async stat(path: string, { user, ...call }: FileOptions = {}): Promise<FileInfo> {
    return this.#connection.call('statFile', { ...call, params: this.#params, query: { path, user } });
  }

  /** A file, or a whole folder. */
  async remove(path: string, { user, ...call }: FileOptions = {}): Promise<void> {
    await this.#connection.call('removeFile', { ...call, params: this.#params, query: { path, user } });
  }

  async makeFolder(path: string, { user, ...call }: FileOptions = {}): Promise<FileInfo> {
    return this.#connection.call('makeFolder', { ...call, params: this.#params, query: { path, user } });
  }

  async move(from: string, to: string, { user, ...call }: FileOptions = {}): Promise<FileInfo> {
    const body = { from, to, ...(user !== undefined && { user }) };
    return this.#connection.call('moveFile', { ...call, params: this.#params, body });
  }

  /** Resolves when watching has begun, so that nothing done afterwards is missed. */
  async watch(
    path: string,
    { user, recursive, ...call }: FileOptions & { recursive?: boolean } = {},
  ): Promise<AsyncIterable<WatchEvent>> {
    const query = { path, user, recursive };
    const response = await this.#connection.open('watchFiles', { ...call, params: this.#params, query });
    const events = serverSentEvents(response);
    const first = await events.next();
    if (first.done || first.value.name !== 'start')
      throw new ForkdError('unreachable', `the sandbox did not begin to watch ${path}`);
    return changes(events);
  }
}

async function* changes(events: ReturnType<typeof serverSentEvents>): AsyncGenerator<WatchEvent> {
  for await (const event of events) yield { type: event.name, ...eventData(FileEvent, event) };
}

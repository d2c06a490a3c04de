import { Readable } from 'node:stream';
import { ForkdError } from '@forkd/protocol';
import { z } from 'zod';
import { envelope, messages } from './connect-json.js';
import type { CallOptions } from './exchange.js';
import { basicUser } from './process.js';
import type { Refusal } from './refusal.js';
import { get, parseReply, post, type Request, type Transport } from './transport.js';

export interface FileOptions extends CallOptions {
  user?: string | undefined;
}

const READ_LIMIT = 64 << 20;
const TRANSFER_TIMEOUT_MS = 600_000;
const UPLOAD_REPLY_LIMIT = 64 << 10;
const INVALID = ['invalid_request', 'Check the path (is it a file, or a folder?) and the user.'] as const;
const FORBIDDEN = ['not_permitted', 'Nobody may do this in the sandbox, also not root; choose another path.'] as const;
const IN_THE_WAY = ['state_conflict', 'Something else is there: remove it, or choose another path.'] as const;
const REFUSED: Refusal = {
  not_found: ['file_not_found'],
  404: ['file_not_found'],
  invalid_argument: INVALID,
  400: INVALID,
  unauthenticated: INVALID,
  401: INVALID,
  permission_denied: FORBIDDEN,
  403: FORBIDDEN,
  already_exists: IN_THE_WAY,
  409: IN_THE_WAY,
};

const FileInfo = z.object({
  name: z.string().default(''),
  type: z.string().default('FILE_TYPE_UNSPECIFIED').transform(shortType),
  path: z.string().default(''),
  size: z.coerce.number().default(0),
  mode: z.number().default(0),
  permissions: z.string().default(''),
  owner: z.string().default(''),
  group: z.string().default(''),
  modifiedTime: z.string().optional(),
  symlinkTarget: z.string().optional(),
});
export type FileInfo = z.output<typeof FileInfo>;

const WatchMessage = z.object({
  start: z.object({}).optional(),
  filesystem: z
    .object({
      name: z.string().default(''),
      type: z.string().transform((type) => type.replace(/^EVENT_TYPE_/, '').toLowerCase()),
      entry: FileInfo.optional(),
    })
    .optional(),
});
export type WatchEvent = NonNullable<z.output<typeof WatchMessage>['filesystem']>;

const OneEntry = z.object({ entry: FileInfo });
const Nothing = z.object({});

/** The file system of the guest. Relative paths start at the sandbox's working directory. */
export class GuestFiles {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  async read(
    path: string,
    { maxBytes = READ_LIMIT, ...options }: FileOptions & { maxBytes?: number } = {},
  ): Promise<Buffer> {
    const exchange = await this.#download(path, options);
    return exchange.collect(maxBytes);
  }

  /** `size` is what the guest promises: the stream fails rather than end with more or less. */
  async readStream(path: string, options: FileOptions = {}): Promise<{ size: number | undefined; stream: Readable }> {
    const exchange = await this.#download(path, options);
    const promised = (await exchange.response)['content-length'];
    const size = promised !== undefined && /^\d{1,15}$/.test(promised) ? Number(promised) : undefined;
    return { size, stream: Readable.from(exactly(size, exchange.chunks()), { objectMode: false }) };
  }

  async write(path: string, data: string | Uint8Array, options: FileOptions = {}): Promise<void> {
    await this.writeStream(path, [data], options);
  }

  /** The file takes its name when all of it has arrived; until then what was there stays. */
  async writeStream(
    path: string,
    data: AsyncIterable<Uint8Array | string> | Iterable<Uint8Array | string>,
    { user, ...options }: FileOptions = {},
  ): Promise<void> {
    const headers = { 'content-type': 'application/octet-stream', 'forkd-upload': 'whole', ...basicUser(user) };
    const request = this.#request('write', path, post(filesPath(path), headers));
    const exchange = this.#transport.open(request, { timeoutMs: TRANSFER_TIMEOUT_MS, ...options });
    const sent = exchange.send(data).catch((thrown: unknown) => {
      exchange.fail(new ForkdError('invalid_request', `write ${path}: the source failed`, { cause: thrown }));
    });
    await this.#transport.accepted(exchange, request);
    parseReply(request.what, await exchange.collect(UPLOAD_REPLY_LIMIT), z.array(Nothing));
    await sent;
  }

  async list(path: string, { depth = 1, ...options }: FileOptions & { depth?: number } = {}): Promise<FileInfo[]> {
    const schema = z.object({ entries: z.array(FileInfo).default([]) });
    return (await this.#call('ListDir', { path, depth }, path, schema, options)).entries;
  }

  async stat(path: string, options: FileOptions = {}): Promise<FileInfo> {
    return (await this.#call('Stat', { path }, path, OneEntry, options)).entry;
  }

  async exists(path: string, options: FileOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (thrown) {
      if (thrown instanceof ForkdError && thrown.code === 'file_not_found') return false;
      throw thrown;
    }
  }

  /** Removes a file or a whole folder; what is not there counts as removed. */
  async remove(path: string, options: FileOptions = {}): Promise<void> {
    await this.#call('Remove', { path }, path, Nothing, options);
  }

  async rename(source: string, destination: string, options: FileOptions = {}): Promise<FileInfo> {
    return (await this.#call('Move', { source, destination }, source, OneEntry, options)).entry;
  }

  /** Creates a folder with its parents; false if it was there. */
  async makeDir(path: string, options: FileOptions = {}): Promise<boolean> {
    try {
      await this.#call('MakeDir', { path }, path, OneEntry, options);
      return true;
    } catch (thrown) {
      if (thrown instanceof ForkdError && thrown.details.guest_code === 'already_exists') return false;
      throw thrown;
    }
  }

  /** Resolves once the watch is in place; what changes from then on is seen. Stops when the loop is left. */
  async watch(
    path: string,
    { recursive = false, user, ...options }: FileOptions & { recursive?: boolean } = {},
  ): Promise<AsyncGenerator<WatchEvent, void>> {
    const headers = post('/filesystem.Filesystem/WatchDir', {
      'content-type': 'application/connect+json',
      ...basicUser(user),
    });
    const request = this.#request('watch', path, headers);
    const exchange = this.#transport.open(request, options);
    exchange.stream.end(envelope({ path, recursive, includeEntry: true }));
    await this.#transport.accepted(exchange, request);
    const events = messages(request.what, exchange.chunks(), WatchMessage, REFUSED);
    const first = await events.next();
    if (first.done || !first.value.start) {
      exchange.abandon();
      throw new ForkdError('guest_protocol', `${request.what}: the guest did not begin with a start event`);
    }
    return changes(events);
  }

  async #download(path: string, { user, ...options }: FileOptions) {
    const request = this.#request('read', path, get(filesPath(path), basicUser(user)));
    const exchange = this.#transport.open(request, { timeoutMs: TRANSFER_TIMEOUT_MS, ...options });
    await this.#transport.accepted(exchange, request);
    return exchange;
  }

  #request(verb: string, path: string, headers: Request['headers']): Request {
    return { what: `${verb} ${path.slice(0, 500)}`, headers, refused: REFUSED };
  }

  #call<S extends z.ZodType>(
    procedure: string,
    body: object,
    path: string,
    schema: S,
    { user, ...options }: FileOptions,
  ): Promise<z.output<S>> {
    const headers = post(`/filesystem.Filesystem/${procedure}`, basicUser(user));
    return this.#transport.call(this.#request(procedure, path, headers), body, schema, options);
  }
}

async function* changes(events: AsyncGenerator<z.output<typeof WatchMessage>>): AsyncGenerator<WatchEvent, void> {
  for await (const { filesystem } of events) if (filesystem) yield filesystem;
}

async function* exactly(size: number | undefined, chunks: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let left = size ?? Number.POSITIVE_INFINITY;
  for await (const chunk of chunks) {
    left -= chunk.length;
    if (left < 0) break;
    yield chunk;
  }
  if (size !== undefined && left !== 0)
    throw new ForkdError('guest_protocol', `the guest promised ${size} bytes and sent ${left < 0 ? 'more' : 'less'}`);
}

function filesPath(path: string): string {
  return `/files?${new URLSearchParams({ path })}`;
}

function shortType(type: string): 'file' | 'dir' | 'other' {
  if (type === 'FILE_TYPE_FILE') return 'file';
  return type === 'FILE_TYPE_DIRECTORY' ? 'dir' : 'other';
}

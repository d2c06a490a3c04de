import { type ClientHttp2Session, connect, constants, type OutgoingHttpHeaders } from 'node:http2';
import type { Duplex } from 'node:stream';
import { ForkdError } from '@forkd/protocol';
import type { z } from 'zod';
import { type CallOptions, Exchange, type ResponseHeaders } from './exchange.js';
import { type Refusal, refusal } from './refusal.js';

/** What a unary reply may weigh; listings of large folders are the largest honest ones. */
const REPLY_LIMIT = 32 << 20;
const ERROR_LIMIT = 64 << 10;
const UNARY_TIMEOUT_MS = 30_000;
const STREAM_WINDOW = 256 << 10;

export interface Request {
  what: string;
  headers: OutgoingHttpHeaders;
  /** How a refusal by the guest is worded as an error of ours. */
  refused?: Refusal;
}

/** HTTP/2 with the agent over one byte stream. */
export class Transport {
  readonly #session: ClientHttp2Session;
  #lost: ForkdError | undefined;

  constructor(socket: Duplex) {
    this.#session = connect('http://guest', {
      createConnection: () => socket,
      settings: { enablePush: false, initialWindowSize: STREAM_WINDOW },
      maxSessionMemory: 64,
    });
    this.#session.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code?.startsWith('ERR_HTTP2'))
        this.#lost ??= new ForkdError('guest_protocol', `the guest broke HTTP/2: ${error.message}`, { cause: error });
    });
    // A closed socket with requests under way is the end of the guest, whatever HTTP/2 still waits for.
    socket.on('close', () => this.#end(new ForkdError('vmm_exited', 'the connection to the guest was lost')));
  }

  open({ what, headers }: Request, options: CallOptions): Exchange {
    if (options.signal?.aborted) throw new ForkdError('cancelled', `${what} was cancelled`);
    const lost = this.#whyLost();
    if (lost) throw lost;
    return new Exchange(this.#session.request(headers), () => this.#whyLost(), what, options);
  }

  #whyLost(): ForkdError | undefined {
    if (this.#session.closed || this.#session.destroyed)
      this.#lost ??= new ForkdError('vmm_exited', 'the connection to the guest was lost');
    return this.#lost;
  }

  /** Waits for the reply of an exchange, and throws what a refusal says. */
  async accepted(exchange: Exchange, { what, refused }: Request): Promise<ResponseHeaders> {
    const headers = await exchange.response;
    const status = headers[':status'] ?? 0;
    if (status >= 200 && status < 300) return headers;
    throw refusal(what, status, await exchange.collect(ERROR_LIMIT), refused);
  }

  /** One JSON (or empty) request, one JSON reply. */
  async call<S extends z.ZodType>(
    request: Request,
    body: unknown,
    schema: S,
    options: CallOptions = {},
  ): Promise<z.output<S>> {
    const exchange = this.open(request, { timeoutMs: UNARY_TIMEOUT_MS, ...defined(options) });
    exchange.stream.end(body === undefined ? undefined : JSON.stringify(body));
    await this.accepted(exchange, request);
    return parseReply(request.what, await exchange.collect(REPLY_LIMIT), schema);
  }

  close(why = new ForkdError('cancelled', 'the connection to the guest was closed by its owner')): void {
    this.#end(why);
  }

  /** With an error and a code, because replies that are cut off would look complete otherwise. */
  #end(why: ForkdError): void {
    this.#lost ??= why;
    this.#session.destroy(why, constants.NGHTTP2_CANCEL);
  }
}

/** An explicit `undefined` must not hide a default. */
function defined({ signal, timeoutMs }: CallOptions): CallOptions {
  return { ...(signal && { signal }), ...(timeoutMs !== undefined && { timeoutMs }) };
}

export function post(path: string, headers: OutgoingHttpHeaders = {}): OutgoingHttpHeaders {
  return { ':method': 'POST', ':path': path, 'content-type': 'application/json', ...headers };
}

export function get(path: string, headers: OutgoingHttpHeaders = {}): OutgoingHttpHeaders {
  return { ':method': 'GET', ':path': path, ...headers };
}

/** Parses untrusted JSON; an empty reply counts as an empty object. */
export function parseReply<S extends z.ZodType>(what: string, bytes: Uint8Array, schema: S): z.output<S> {
  let value: unknown;
  try {
    value = bytes.length === 0 ? {} : JSON.parse(Buffer.from(bytes).toString());
  } catch {
    throw new ForkdError('guest_protocol', `${what}: the guest's reply is not JSON`);
  }
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  throw new ForkdError('guest_protocol', `${what}: the guest's reply is malformed at /${issue?.path.join('/') ?? ''}`);
}

import { randomUUID } from 'node:crypto';
import http, { type ClientRequest, type IncomingMessage } from 'node:http';
import https from 'node:https';
import { pipeline, type Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { ERRORS, ForkdError, ROUTES, type Route, type RouteName } from '@forkd/protocol';
import { type CallOptions, type ForkdOptions, readTarget, type Target } from './options.js';
import { collect, refusal, unreachable } from './refusal.js';

export interface Input extends CallOptions {
  params?: Record<string, string>;
  query?: Record<string, string | number | boolean | undefined>;
  /** Sent as JSON. */
  body?: object;
  /** Sent as it is. */
  bytes?: Readable | Uint8Array | string;
  headers?: Record<string, string>;
}

type Parsed<Schema> = Schema extends { parse(value: unknown): infer Value } ? Value : undefined;
type Replies<Name extends RouteName> = (typeof ROUTES)[Name]['replies'];
export type Reply<Name extends RouteName> = Parsed<Replies<Name>[keyof Replies<Name>]>;

const REPLY_LIMIT = 64 << 20;
const BACKOFF_MS = 100;
const LONGEST_WAIT_MS = 10_000;

/** Calls the routes of the protocol's table. Connections are kept and used again. */
export class Connection {
  readonly #target: Target;
  readonly #agent: http.Agent;

  constructor(options: ForkdOptions) {
    this.#target = readTarget(options);
    this.#agent = new (this.#isSecure ? https : http).Agent({ keepAlive: true });
  }

  close(): void {
    this.#agent.destroy();
  }

  /** The whole answer, after it has passed the schema of its route. */
  async call<Name extends RouteName>(name: Name, input: Input = {}): Promise<Reply<Name>> {
    const { reply } = await this.callWithHeaders(name, input);
    return reply;
  }

  async callWithHeaders<Name extends RouteName>(
    name: Name,
    input: Input = {},
  ): Promise<{ reply: Reply<Name>; headers: http.IncomingHttpHeaders }> {
    return this.#within(input, async (signal) => {
      const response = await this.#open(name, input, signal);
      const text = await collect(response, REPLY_LIMIT);
      return { reply: parseReply(name, response, text) as Reply<Name>, headers: response.headers };
    });
  }

  /** The answer as it comes; `signal` still ends it later, `timeout_ms` does not. */
  async open(name: RouteName, input: Input = {}): Promise<IncomingMessage> {
    return this.#within(input, (signal) => this.#open(name, input, signal));
  }

  /** What a WebSocket needs to reach a route. */
  address(name: RouteName, { params, query }: Input): { url: URL; headers: Record<string, string>; socket?: string } {
    const { url, socket } = this.#target;
    const address = new URL(this.#path(ROUTES[name], params, query), socket === undefined ? url : 'http://localhost');
    return { url: address, headers: this.#headers(), ...(socket === undefined ? {} : { socket }) };
  }

  /** The URL of a name below the domain of the daemon. */
  siteOf(name: string, domain?: string): string {
    const { url, socket } = this.#target;
    if (socket !== undefined)
      throw new ForkdError('invalid_request', 'a daemon on a Unix socket has no sites', {
        hint: 'Use `forkd port-forward`, or `connect`.',
      });
    const isLocal = url.hostname === '[::1]' || /^127\.\d+\.\d+\.\d+$/.test(url.hostname);
    const host = `${name}.${domain ?? (isLocal ? 'localhost' : url.hostname)}`;
    return `${url.protocol}//${host}${url.port && `:${url.port}`}/`;
  }

  get #isSecure(): boolean {
    return this.#target.url.protocol === 'https:' && this.#target.socket === undefined;
  }

  async #within<T>({ signal, timeout_ms }: CallOptions, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const limit = new AbortController();
    const ms = timeout_ms ?? this.#target.timeout_ms;
    const timer = setTimeout(() => limit.abort(), ms);
    try {
      return await work(signal ? AbortSignal.any([signal, limit.signal]) : limit.signal);
    } catch (cause) {
      if (signal?.aborted) throw new ForkdError('cancelled', 'the call was cancelled', { cause });
      if (limit.signal.aborted) throw new ForkdError('timeout', `no answer within ${ms / 1000} s`, { cause });
      throw cause;
    } finally {
      clearTimeout(timer);
    }
  }

  /** Repeats what failed for a passing reason, where repeating cannot do a thing twice. */
  async #open(name: RouteName, input: Input, signal: AbortSignal): Promise<IncomingMessage> {
    const route: Route = ROUTES[name];
    const path = this.#path(route, input.params, input.query);
    const key = route.creates ? { 'idempotency-key': randomUUID() } : {};
    const isSafe = route.method === 'GET' || route.creates;
    for (let failures = 0; ; failures++) {
      try {
        return await this.#send(route.method, path, { ...input, headers: { ...key, ...input.headers } }, signal);
      } catch (error) {
        const passes = error instanceof ForkdError && ERRORS[error.code].retry === 'retry';
        if (!passes || !isSafe || failures >= this.#target.retries || signal.aborted) throw error;
        const asked = Number(error.details.retry_after_secs ?? 0) * 1000;
        await sleep(Math.min(LONGEST_WAIT_MS, Math.max(asked, BACKOFF_MS * 3 ** failures)), undefined, { signal });
      }
    }
  }

  async #send(method: string, path: string, input: Input, signal: AbortSignal): Promise<IncomingMessage> {
    const { url, socket } = this.#target;
    const json = input.body === undefined ? undefined : JSON.stringify(input.body);
    const type = json !== undefined ? 'application/json' : input.bytes !== undefined ? 'application/octet-stream' : '';
    const headers = { ...this.#headers(), ...(type && { 'content-type': type }), ...input.headers };
    const place = socket === undefined ? { ...hostOf(url) } : { socketPath: socket, host: 'localhost' };
    const request = (this.#isSecure ? https : http).request({
      ...place,
      method,
      path,
      headers,
      agent: this.#agent,
    });
    const response = await answer(request, json ?? input.bytes, signal);
    if ((response.statusCode ?? 500) >= 400) throw await refusal(response);
    return response;
  }

  #headers(): Record<string, string> {
    const { token } = this.#target;
    return token === undefined ? {} : { authorization: `Bearer ${token}` };
  }

  /** Nothing gets into a path that has not passed the schema of its place. */
  #path({ path, params: schema }: Route, params: Input['params'], query: Input['query'] = {}): string {
    const parsed = schema?.safeParse(params ?? {});
    if (parsed && !parsed.success) {
      const [issue] = parsed.error.issues;
      throw new ForkdError('invalid_request', `${issue?.path.join('.')}: ${issue?.message}`);
    }
    const values = (parsed?.data ?? {}) as Record<string, string>;
    const filled = path.replace(/:([a-z_]+)/g, (_, name: string) => encodeURIComponent(values[name]!));
    const search = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) if (value !== undefined) search.set(name, String(value));
    const prefix = this.#target.url.pathname.replace(/\/+$/, '');
    return `${prefix}${filled}${search.size > 0 ? `?${search}` : ''}`;
  }
}

function hostOf({ hostname, port }: URL): { host: string; port?: string } {
  return { host: hostname.replace(/^\[|\]$/g, ''), ...(port && { port }) };
}

/** Resolves with the answer's head; `signal` ends the exchange until its last byte has come. */
function answer(
  request: ClientRequest,
  body: Readable | Uint8Array | string | undefined,
  signal: AbortSignal,
): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    let unreadable: Error | undefined;
    let stream: ClientRequest | IncomingMessage = request;
    const end = (): void => void stream.destroy(new ForkdError('cancelled', 'the call was cancelled'));
    request.on('response', (response) => {
      stream = response;
      resolve(response);
    });
    request.on('error', (cause) => reject(unreadable ?? unreachable(cause)));
    request.once('close', () => signal.removeEventListener('abort', end));
    if (signal.aborted) end();
    else signal.addEventListener('abort', end, { once: true });
    if (body === undefined || typeof body === 'string' || body instanceof Uint8Array) {
      request.end(body);
      return;
    }
    body.once('error', (error) => {
      unreadable = error;
    });
    pipeline(body, request, () => {});
  });
}

function parseReply(name: RouteName, response: IncomingMessage, text: string): unknown {
  const replies: Route['replies'] = ROUTES[name].replies;
  const schema = replies[response.statusCode ?? 0];
  if (schema === null) return undefined;
  const isJson = response.headers['content-type']?.includes('json');
  try {
    const parsed = schema?.safeParse(isJson ? JSON.parse(text) : text);
    if (parsed?.success) return parsed.data;
  } catch {
    // Not JSON although it says so: as unexpected as any other shape.
  }
  throw new ForkdError('internal', `the daemon answered ${name} in a way this client does not understand`, {
    hint: 'Do the versions fit together? Compare them with `forkd version`.',
  });
}

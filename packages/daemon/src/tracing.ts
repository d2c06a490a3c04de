import { randomBytes } from 'node:crypto';
import type { FastifyBaseLogger } from 'fastify';
import type { Operation } from './operation.js';

const MOST_WAITING = 2048;
const BATCH = 512;
const EVERY_MS = 1000;
const TIMEOUT_MS = 5000;
const SERVER_SPAN = 2;
const ERROR_STATUS = 2;

/** Sends one span per request to an OpenTelemetry collector (OTLP over HTTP, JSON). No request ever waits for it. */
export class Tracer implements AsyncDisposable {
  readonly #url: string;
  readonly #version: string;
  readonly #log: FastifyBaseLogger;
  readonly #timer: NodeJS.Timeout;
  #waiting: object[] = [];
  #sending: Promise<void> | undefined;
  #failing = false;

  constructor(endpoint: string, version: string, log: FastifyBaseLogger) {
    this.#url = `${endpoint.replace(/\/+$/, '')}/v1/traces`;
    this.#version = version;
    this.#log = log;
    this.#timer = setInterval(() => void this.#flush(), EVERY_MS).unref();
  }

  /** Spans that find no room are dropped. */
  trace(operation: Operation): void {
    const parent = parseTraceparent(operation.request.headers.traceparent);
    if (parent?.sampled === false || this.#waiting.length >= MOST_WAITING) return;
    this.#waiting.push(span(operation, parent));
    if (this.#waiting.length >= BATCH) void this.#flush();
  }

  /** What still waits gets one more try. */
  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#timer);
    await this.#sending;
    await this.#flush();
  }

  #flush(): Promise<void> {
    this.#sending ??= this.#send().finally(() => {
      this.#sending = undefined;
    });
    return this.#sending;
  }

  async #send(): Promise<void> {
    if (this.#waiting.length === 0) return;
    const spans = this.#waiting;
    this.#waiting = [];
    const resource = { attributes: attributes({ 'service.name': 'forkd', 'service.version': this.#version }) };
    const body = { resourceSpans: [{ resource, scopeSpans: [{ scope: { name: 'forkd' }, spans }] }] };
    try {
      const reply = await fetch(this.#url, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
        redirect: 'error',
        signal: AbortSignal.timeout(TIMEOUT_MS),
      });
      await reply.body?.cancel();
      if (!reply.ok) throw new Error(`the collector answered ${reply.status}`);
      this.#failing = false;
    } catch (thrown) {
      // Only its kind: the message of a failed fetch may repeat the URL, which may hold a password.
      const { name, cause } = thrown as Error;
      const reason = (cause as NodeJS.ErrnoException | undefined)?.code ?? name;
      if (!this.#failing) this.#log.warn({ reason }, 'traces cannot be sent, and are dropped');
      this.#failing = true;
    }
  }
}

interface Parent {
  traceId: string;
  spanId: string;
  sampled: boolean;
}

/** W3C Trace Context; what does not follow it is as good as absent. */
export function parseTraceparent(header: string | string[] | undefined): Parent | undefined {
  const match = /^(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/.exec(String(header ?? ''));
  if (!match) return undefined;
  const [, version, traceId = '', spanId = '', flags = '', more] = match;
  if (/^0+$/.test(traceId) || /^0+$/.test(spanId) || (version === '00' && more !== undefined)) return undefined;
  return { traceId, spanId, sampled: (Number.parseInt(flags, 16) & 1) === 1 };
}

function span(operation: Operation, parent: Parent | undefined): object {
  const { request, route, startedAt, seconds, status, outcome, remote, subjects, path } = operation;
  return {
    traceId: parent?.traceId ?? randomBytes(16).toString('hex'),
    spanId: randomBytes(8).toString('hex'),
    ...(parent && { parentSpanId: parent.spanId }),
    name: route ? `${request.method} ${route.path}` : request.method,
    kind: SERVER_SPAN,
    startTimeUnixNano: String(BigInt(startedAt) * 1_000_000n),
    endTimeUnixNano: String(BigInt(startedAt) * 1_000_000n + BigInt(Math.round(seconds * 1e9))),
    attributes: attributes({
      'http.request.method': request.method,
      'http.route': route?.path,
      'http.response.status_code': status,
      'url.path': path.slice(0, 1024),
      'client.address': remote,
      'error.type': outcome === 'ok' ? undefined : outcome,
      'forkd.request_id': request.id,
      'forkd.caller': request.caller?.name,
      'forkd.sandbox': [subjects.sandbox ?? []].flat()[0],
      'forkd.snapshot': subjects.snapshot,
    }),
    status: status >= 500 ? { code: ERROR_STATUS } : {},
  };
}

function attributes(values: Record<string, string | number | undefined>): object[] {
  return Object.entries(values).flatMap(([key, value]) => {
    if (value === undefined) return [];
    return [{ key, value: typeof value === 'number' ? { intValue: String(value) } : { stringValue: value } }];
  });
}

import { ForkdError } from '@forkd/protocol';
import { z } from 'zod';
import { envelope, messages } from './connect-json.js';
import type { CallOptions, Exchange } from './exchange.js';
import type { Refusal } from './refusal.js';
import { signalName } from './signals.js';
import { post, type Transport } from './transport.js';

export interface StartOptions extends CallOptions {
  /** Program and arguments; or `command`, a line for /bin/sh. */
  args?: readonly [string, ...string[]] | undefined;
  command?: string | undefined;
  cwd?: string | undefined;
  env?: Readonly<Record<string, string>> | undefined;
  user?: string | undefined;
  /** Keep stdin open for `write`. */
  stdin?: boolean | undefined;
  /** Run on a terminal of this size; everything it prints arrives as stdout. */
  pty?: { cols: number; rows: number } | undefined;
  tag?: string | undefined;
}

export interface OutputChunk {
  type: 'stdout' | 'stderr';
  data: Buffer;
}

export interface Exit {
  exitCode: number | null;
  signal: string | null;
  timedOut: boolean;
}

/** The agent ends the process on time; a guest that does not is given this much longer. */
const MARGIN_MS = 5_000;
const INPUT_CHUNK = 256 << 10;

const INVALID = ['invalid_request', 'Check the program, its working directory and the user.'] as const;
const REFUSED: Refusal = { invalid_argument: INVALID, unauthenticated: INVALID };

const Event = z.object({
  event: z.object({
    start: z.object({ pid: z.number().int() }).optional(),
    data: z
      .object({ stdout: z.string().optional(), stderr: z.string().optional(), pty: z.string().optional() })
      .optional(),
    end: z
      .object({
        exitCode: z.number().int().default(0),
        exited: z.boolean().default(false),
        status: z.string().default(''),
      })
      .optional(),
  }),
});
const Nothing = z.object({});

/** A process in the guest. It is killed when the caller aborts, stops iterating, or loses the connection. */
export class GuestProcess implements AsyncIterable<OutputChunk> {
  readonly pid: number;
  readonly #transport: Transport;
  readonly #exchange: Exchange;
  readonly #events: AsyncGenerator<z.output<typeof Event>>;
  readonly #isTerminal: boolean;
  #exit: Exit | undefined;

  private constructor(
    transport: Transport,
    exchange: Exchange,
    events: AsyncGenerator<z.output<typeof Event>>,
    pid: number,
    isTerminal: boolean,
  ) {
    this.#transport = transport;
    this.#exchange = exchange;
    this.#events = events;
    this.pid = pid;
    this.#isTerminal = isTerminal;
  }

  static async start(transport: Transport, options: StartOptions): Promise<GuestProcess> {
    const { command, cwd, env = {}, user, stdin = false, pty, tag, signal, timeoutMs = 0 } = options;
    const [cmd, ...args] = options.args ?? ['/bin/sh', '-c', command ?? ''];
    const request = {
      what: 'exec',
      headers: post('/process.Process/Start', {
        'content-type': 'application/connect+json',
        'forkd-cancel': 'kill',
        ...basicUser(user),
        ...(timeoutMs > 0 && { 'connect-timeout-ms': String(Math.ceil(timeoutMs)) }),
      }),
    };
    const exchange = transport.open(request, { signal, timeoutMs: timeoutMs > 0 ? timeoutMs + MARGIN_MS : 0 });
    const process = { cmd, args, envs: env, ...(cwd !== undefined && { cwd }) };
    exchange.stream.end(envelope({ process, stdin, ...(pty && { pty: { size: pty } }), ...(tag && { tag }) }));
    await transport.accepted(exchange, request);
    const events = messages('exec', exchange.chunks(), Event, REFUSED);
    const first = await events.next();
    const pid = first.done ? undefined : first.value.event.start?.pid;
    if (pid === undefined) {
      exchange.abandon();
      throw new ForkdError('guest_protocol', 'exec: the guest did not begin with a start event');
    }
    return new GuestProcess(transport, exchange, events, pid, pty !== undefined);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<OutputChunk, void> {
    try {
      for await (const { event } of this.#events) {
        const { data, end } = event;
        if (end) this.#exit = exitOf(end);
        const stdout = data?.stdout ?? data?.pty;
        if (stdout !== undefined) yield { type: 'stdout', data: Buffer.from(stdout, 'base64') };
        if (data?.stderr !== undefined) yield { type: 'stderr', data: Buffer.from(data.stderr, 'base64') };
      }
    } catch (thrown) {
      if (!(thrown instanceof ForkdError) || thrown.details.guest_code !== 'deadline_exceeded') throw thrown;
      this.#exit = { exitCode: null, signal: 'SIGKILL', timedOut: true };
    } finally {
      this.#exchange.abandon();
    }
  }

  /** How it ended. Reads and drops output that nobody took, because an unread pipe would hold the process up. */
  async wait(): Promise<Exit> {
    if (!this.#exit) for await (const _ of this);
    if (!this.#exit) throw new ForkdError('guest_protocol', 'exec: the guest did not say how the process ended');
    return this.#exit;
  }

  /** Feeds stdin (or the terminal) and returns when the process has taken it. */
  async write(data: string | Uint8Array, options: CallOptions = {}): Promise<void> {
    const bytes = Buffer.from(data as Uint8Array);
    for (let at = 0; at < bytes.length; at += INPUT_CHUNK) {
      const encoded = bytes.subarray(at, at + INPUT_CHUNK).toString('base64');
      const input = this.#isTerminal ? { pty: encoded } : { stdin: encoded };
      await this.#call('SendInput', { input }, { timeoutMs: 0, ...options });
    }
  }

  async closeStdin(options: CallOptions = {}): Promise<void> {
    await this.#call('CloseStdin', {}, options);
  }

  async kill(
    signal: 'SIGKILL' | 'SIGTERM' | 'SIGINT' | 'SIGHUP' = 'SIGKILL',
    options: CallOptions = {},
  ): Promise<void> {
    await this.#call('SendSignal', { signal: `SIGNAL_${signal}` }, options);
  }

  async resize(size: { cols: number; rows: number }, options: CallOptions = {}): Promise<void> {
    await this.#call('Update', { pty: { size } }, options);
  }

  async #call(procedure: string, body: object, options: CallOptions): Promise<void> {
    const request = { what: procedure, headers: post(`/process.Process/${procedure}`) };
    await this.#transport.call(request, { process: { pid: this.pid }, ...body }, Nothing, options);
  }
}

export function basicUser(user: string | undefined): { authorization?: string } {
  return user === undefined ? {} : { authorization: `Basic ${Buffer.from(`${user}:`).toString('base64')}` };
}

function exitOf(end: { exitCode: number; exited: boolean; status: string }): Exit {
  if (end.exited) return { exitCode: end.exitCode, signal: null, timedOut: false };
  return { exitCode: null, signal: signalName(end.status), timedOut: false };
}

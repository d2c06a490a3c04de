import type { Duplex } from 'node:stream';
import type { ForkdError } from '@forkd/protocol';
import { z } from 'zod';
import { type EvalOptions, type EvalResult, evaluate, type Language } from './eval.js';
import type { CallOptions } from './exchange.js';
import { type ExecOptions, type ExecResult, exec } from './exec.js';
import { GuestFiles } from './files.js';
import { Acknowledged, Health, type Identity, Metrics } from './identity.js';
import { Ports } from './ports.js';
import { GuestProcess, type StartOptions } from './process.js';
import type { Refusal } from './refusal.js';
import { get, post, Transport } from './transport.js';
import { answerWish, type Wish, type WishAnswer, wishes } from './wishes.js';

/** Starting an interpreter on an emulated CPU beside a busy host takes its time. */
const KERNEL_TIMEOUT_MS = 150_000;
const SETTLE_TIMEOUT_MS = 60_000;
const CONNECT_TIMEOUT_MS = 10_000;

const UNHEARD: Refusal = { 502: ['guest_error', 'Does a program in the sandbox listen there? List its ports.'] };

/** Everything the host may ask of one guest. Nothing the guest answers is trusted. */
export class GuestClient {
  readonly files: GuestFiles;
  readonly #transport: Transport;

  constructor(socket: Duplex) {
    this.#transport = new Transport(socket);
    this.files = new GuestFiles(this.#transport);
  }

  health(options: CallOptions = {}): Promise<z.output<typeof Health>> {
    return this.#transport.call({ what: 'health', headers: get('/forkd/health') }, undefined, Health, options);
  }

  identity(identity: Identity, options: CallOptions = {}): Promise<z.output<typeof Acknowledged>> {
    const request = { what: 'identity', headers: post('/forkd/identity') };
    return this.#transport.call(request, identity, Acknowledged, options);
  }

  eval(options: EvalOptions): Promise<EvalResult> {
    return evaluate(this.#transport, options);
  }

  /** Stops what the kernel is running; false if it was idle. */
  async interrupt(language: Language, options: CallOptions = {}): Promise<boolean> {
    const request = { what: 'interrupt', headers: post('/forkd/interrupt') };
    const reply = z.object({ interrupted: z.boolean() });
    return (await this.#transport.call(request, { language }, reply, options)).interrupted;
  }

  async startKernel(language: Language, options: CallOptions = {}): Promise<void> {
    const request = { what: 'start kernel', headers: post('/forkd/kernels') };
    const limits = { ...options, timeoutMs: options.timeoutMs ?? KERNEL_TIMEOUT_MS };
    await this.#transport.call(request, { language }, z.object({}), limits);
  }

  /** Tidies the guest for a snapshot. */
  async settle({ dropCaches = false, ...options }: CallOptions & { dropCaches?: boolean } = {}): Promise<void> {
    const request = { what: 'settle', headers: post('/forkd/settle') };
    const limits = { ...options, timeoutMs: options.timeoutMs ?? SETTLE_TIMEOUT_MS };
    await this.#transport.call(request, { drop_caches: dropCaches }, z.object({}), limits);
  }

  /** Starts a process and streams its output. Reading slowly slows the process down; nothing piles up here. */
  start(options: StartOptions): Promise<GuestProcess> {
    return GuestProcess.start(this.#transport, options);
  }

  exec(options: ExecOptions): Promise<ExecResult> {
    return exec(this.#transport, options);
  }

  /** A byte stream to a port of the guest's loopback. */
  async connect(port: number, options: CallOptions = {}): Promise<Duplex> {
    const authority = `localhost:${port}`;
    const headers = { ':method': 'CONNECT', ':authority': authority };
    const request = { what: `connect ${authority}`, headers, refused: UNHEARD };
    const limits = { ...options, timeoutMs: options.timeoutMs ?? CONNECT_TIMEOUT_MS };
    const exchange = this.#transport.open(request, limits);
    await this.#transport.accepted(exchange, request);
    exchange.unguard();
    return exchange.stream;
  }

  /** What its processes ask for. Who listens last hears them. */
  wishes(options: CallOptions = {}): AsyncGenerator<Wish> {
    return wishes(this.#transport, options);
  }

  answerWish(id: number, answer: WishAnswer, options: CallOptions = {}): Promise<void> {
    return answerWish(this.#transport, id, answer, options);
  }

  /** The TCP ports that something listens on. */
  async ports(options: CallOptions = {}): Promise<z.output<typeof Ports>['ports']> {
    return (await this.#transport.call({ what: 'ports', headers: get('/forkd/ports') }, undefined, Ports, options))
      .ports;
  }

  metrics(options: CallOptions = {}): Promise<z.output<typeof Metrics>> {
    return this.#transport.call({ what: 'metrics', headers: get('/metrics') }, undefined, Metrics, options);
  }

  async shutdown(options: CallOptions = {}): Promise<void> {
    const request = { what: 'shutdown', headers: post('/forkd/shutdown') };
    await this.#transport.call(request, {}, z.object({}), options);
  }

  /** Drops the connection; calls under way and later ones end with `why`, by default as cancelled. The guest goes on. */
  close(why?: ForkdError): void {
    this.#transport.close(why);
  }
}

/** Speaks to the agent at the other end of a VM's byte channel. */
export function connectGuest(socket: Duplex): GuestClient {
  return new GuestClient(socket);
}

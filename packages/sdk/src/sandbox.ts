import type { Duplex } from 'node:stream';
import type {
  ChangeNetwork,
  ChangeSandbox,
  ErrorBody,
  EvalRequest,
  EvalResponse,
  ExecRequest,
  ExecResponse,
  ForkRequest,
  NetworkInfo,
  NetworkRequest,
  PingResponse,
  PortInfo,
  SandboxInfo,
  SnapshotInfo,
} from '@forkd/protocol';
import { ForkdError } from '@forkd/protocol';
import type { Connection } from './connection.js';
import { type ExecExit, type ExecOutput, execEvents } from './exec-stream.js';
import { Files } from './files.js';
import type { CallOptions } from './options.js';
import { Pty, type PtyOptions } from './pty.js';
import { openTunnel } from './tunnel.js';

export type ExecOptions = Partial<Omit<ExecRequest, 'args'>> & CallOptions;
export type EvalOptions = Partial<Omit<EvalRequest, 'code'>> & CallOptions;
/** Where connections may go. */
export type NetworkOptions = Partial<NetworkRequest>;
export type ForkOptions = Partial<Omit<ForkRequest, 'network'>> & { network?: NetworkOptions } & CallOptions;
export type Spawned = { sandbox: Sandbox } | { error: Omit<ErrorBody, 'request_id'> };

export interface BranchOptions extends CallOptions {
  tag?: string | undefined;
  mode?: 'full' | 'diff' | 'live' | undefined;
  wait?: boolean | undefined;
  measure_diff?: boolean | undefined;
  parent_tag?: string | undefined;
}

export interface Forked {
  /** The one in between; it stays. */
  snapshot: SnapshotInfo;
  children: Spawned[];
}

/** What the daemon waits for a guest beyond the guest's own time limit. */
const MARGIN_MS = 15_000;
const DEFAULT_SECS = 30;
const BRANCH_TIMEOUT_MS = 900_000;
const ROLLBACK_TIMEOUT_MS = 120_000;

/** One running sandbox. `await using` ends it at the end of the block. */
export class Sandbox implements AsyncDisposable {
  readonly id: string;
  readonly files: Files;
  /** As the daemon told last; `refresh` asks again. */
  info: SandboxInfo;
  readonly #connection: Connection;
  readonly #params: { id: string };

  constructor(connection: Connection, info: SandboxInfo) {
    this.#connection = connection;
    this.id = info.id;
    this.#params = { id: info.id };
    this.info = info;
    this.files = new Files(connection, info.id);
  }

  async refresh(call: CallOptions = {}): Promise<SandboxInfo> {
    this.info = await this.#connection.call('getSandbox', { ...call, params: this.#params });
    return this.info;
  }

  async ping(call: CallOptions = {}): Promise<PingResponse> {
    return this.#connection.call('ping', { ...call, params: this.#params });
  }

  /** Runs a program to its end. Its exit code is in the answer, it is not an error. */
  async exec(args: readonly string[], options: ExecOptions = {}): Promise<ExecResponse> {
    return this.#connection.call('exec', this.#execInput(args, options));
  }

  /** Output as it comes, then one exit. Who stops iterating ends the program. */
  async *execStream(args: readonly string[], options: ExecOptions = {}): AsyncGenerator<ExecOutput | ExecExit> {
    const headers = { accept: 'application/x-ndjson, application/json' };
    const response = await this.#connection.open('exec', { ...this.#execInput(args, options), headers });
    yield* execEvents(response);
  }

  /** Evaluates code in the warmed interpreter; an exception of the code is in the answer's `error`. */
  async eval(code: string, { signal, timeout_ms, ...request }: EvalOptions = {}): Promise<EvalResponse> {
    const body = { code, ...request };
    const limits = { signal, timeout_ms: timeout_ms ?? patience(request.timeout_secs) };
    return this.#connection.call('eval', { ...limits, params: this.#params, body });
  }

  async pty(options: PtyOptions = {}): Promise<Pty> {
    return Pty.open(this.#connection, this.id, options);
  }

  /** The most recent output of the serial console. */
  async console(call: CallOptions = {}): Promise<string> {
    return this.#connection.call('console', { ...call, params: this.#params });
  }

  /** The TCP ports that programs in it listen on. */
  async ports(call: CallOptions = {}): Promise<PortInfo[]> {
    return this.#connection.call('ports', { ...call, params: this.#params });
  }

  /** Where a site in it is seen by a browser. `domain`: the daemon's `--domain`, by default the name it is called by. */
  url(port: number, { domain }: { domain?: string } = {}): string {
    return this.#connection.siteOf(`${port}-${this.id}`, domain);
  }

  /** A connection to a port of it, for any protocol. */
  async connect(port: number, call: CallOptions = {}): Promise<Duplex> {
    return openTunnel(this.#connection, { id: this.id, port }, call);
  }

  async pause(call: CallOptions = {}): Promise<SandboxInfo> {
    this.info = await this.#connection.call('pause', { ...call, params: this.#params });
    return this.info;
  }

  async resume(call: CallOptions = {}): Promise<SandboxInfo> {
    this.info = await this.#connection.call('resume', { ...call, params: this.#params });
    return this.info;
  }

  /** Changes its labels, or when it ends. */
  async update(change: ChangeSandbox, call: CallOptions = {}): Promise<SandboxInfo> {
    this.info = await this.#connection.call('changeSandbox', { ...call, params: this.#params, body: change });
    return this.info;
  }

  /** Where its connections may go, and where they went. */
  async network(call: CallOptions = {}): Promise<NetworkInfo> {
    return this.#connection.call('getNetwork', { ...call, params: this.#params });
  }

  /** Replaces its whole policy, at once; rules stay as they are where none are given. */
  async setNetwork(policy: ChangeNetwork, call: CallOptions = {}): Promise<NetworkInfo> {
    return this.#connection.call('changeNetwork', { ...call, params: this.#params, body: policy });
  }

  /** Saves it, as it is now, as a new snapshot. */
  async branch({ signal, timeout_ms = BRANCH_TIMEOUT_MS, ...body }: BranchOptions = {}): Promise<SnapshotInfo> {
    return this.#connection.call('branch', { signal, timeout_ms, params: this.#params, body });
  }

  /** Takes it back to a snapshot it came from, or that was taken of it. */
  async rollback(tag: string, call: CallOptions = {}): Promise<SandboxInfo> {
    const input = { timeout_ms: ROLLBACK_TIMEOUT_MS, ...call, params: this.#params, body: { snapshot_tag: tag } };
    this.info = await this.#connection.call('rollback', input);
    return this.info;
  }

  /** Takes the id of the sandbox it was forked from: use what is returned from here on. */
  async promote(call: CallOptions = {}): Promise<Sandbox> {
    const input = { timeout_ms: ROLLBACK_TIMEOUT_MS, ...call, params: this.#params };
    return new Sandbox(this.#connection, await this.#connection.call('promote', input));
  }

  /** Branches it and spawns `n` children that go on from where it stands: one result per child. */
  async fork({ signal, timeout_ms = BRANCH_TIMEOUT_MS, ...body }: ForkOptions = {}): Promise<Forked> {
    const reply = await this.#connection.call('fork', { signal, timeout_ms, params: this.#params, body });
    const children = reply.results.map((result) =>
      'sandbox' in result ? { sandbox: new Sandbox(this.#connection, result.sandbox) } : result,
    );
    return { snapshot: reply.snapshot, children };
  }

  /** Ends it; that it has ended already is fine. */
  async kill(call: CallOptions = {}): Promise<void> {
    try {
      await this.#connection.call('killSandbox', { ...call, params: this.#params });
    } catch (error) {
      if (!(error instanceof ForkdError && error.code === 'sandbox_not_found')) throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }

  #execInput(args: readonly string[], { signal, timeout_ms, ...request }: ExecOptions) {
    const body = { args, ...request };
    return { signal, timeout_ms: timeout_ms ?? patience(request.timeout_secs), params: this.#params, body };
  }
}

function patience(timeout_secs = DEFAULT_SECS): number {
  return timeout_secs * 1000 + MARGIN_MS;
}

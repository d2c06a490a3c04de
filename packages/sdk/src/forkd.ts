import type { Diff, ForkdEvent, LineageNode, RecipeInfo } from '@forkd/protocol';
import { Connection, type Reply } from './connection.js';
import { type EventsOptions, followEvents } from './events.js';
import type { CallOptions, ForkdOptions } from './options.js';
import { Sandboxes } from './sandboxes.js';
import { Snapshots } from './snapshots.js';
import { Workspaces } from './workspaces.js';

const DIFF_TIMEOUT_MS = 150_000;

/** A client of one daemon. Everything it throws is a `ForkdError`. */
export class Forkd implements Disposable {
  readonly snapshots: Snapshots;
  readonly sandboxes: Sandboxes;
  readonly workspaces: Workspaces;
  readonly #connection: Connection;

  constructor(options: ForkdOptions = {}) {
    this.#connection = new Connection(options);
    this.snapshots = new Snapshots(this.#connection);
    this.sandboxes = new Sandboxes(this.#connection);
    this.workspaces = new Workspaces(this.#connection);
  }

  /** Whether the daemon is up; needs no token. */
  async health(call: CallOptions = {}): Promise<Reply<'health'>> {
    return this.#connection.call('health', call);
  }

  async version(call: CallOptions = {}): Promise<Reply<'version'>> {
    return this.#connection.call('version', call);
  }

  /** In the format of Prometheus. */
  async metrics(call: CallOptions = {}): Promise<string> {
    return this.#connection.call('metrics', call);
  }

  async recipes(call: CallOptions = {}): Promise<RecipeInfo[]> {
    return this.#connection.call('listRecipes', call);
  }

  /** The certificate of the authority that speaks for hosts to which headers are set, in PEM. */
  async networkAuthority(call: CallOptions = {}): Promise<string> {
    return this.#connection.call('networkAuthority', call);
  }

  /** Who came from whom. */
  async lineage(call: CallOptions = {}): Promise<LineageNode[]> {
    return this.#connection.call('lineage', call);
  }

  /** What differs between two sandboxes or snapshots of one line. */
  async diff(a: string, b: string, call: CallOptions = {}): Promise<Diff> {
    return this.#connection.call('diff', { timeout_ms: DIFF_TIMEOUT_MS, ...call, query: { a, b } });
  }

  /** What happens, as it happens, until the caller stops. */
  events(options: EventsOptions = {}): AsyncGenerator<ForkdEvent> {
    return followEvents(this.#connection, options);
  }

  /** Closes the connections that are kept for the next call. */
  close(): void {
    this.#connection.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

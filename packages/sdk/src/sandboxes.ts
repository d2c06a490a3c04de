import type { SandboxInfo, SandboxState, SpawnRequest } from '@forkd/protocol';
import type { Connection } from './connection.js';
import type { CallOptions } from './options.js';
import { type NetworkOptions, Sandbox, type Spawned } from './sandbox.js';

export type SpawnOptions = Pick<SpawnRequest, 'snapshot_tag'> &
  Partial<Omit<SpawnRequest, 'network'>> & { network?: NetworkOptions } & CallOptions;

export interface ListOptions extends CallOptions {
  state?: SandboxState | undefined;
  snapshot_tag?: string | undefined;
  /** All of these labels must be there. */
  metadata?: Readonly<Record<string, string>> | undefined;
  /** Entries per page. */
  limit?: number | undefined;
}

const SPAWN_TIMEOUT_MS = 300_000;

export class Sandboxes {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /** Newest first, asking for the next page when the one before is used up. Without `state`, what has not ended. */
  async *list({ metadata, state, snapshot_tag, limit, ...call }: ListOptions = {}): AsyncGenerator<SandboxInfo> {
    const labels = Object.entries(metadata ?? {}).map(([name, value]) => `${name}=${value}`);
    const filter = { state, snapshot_tag, limit, metadata: labels.length > 0 ? labels.join(',') : undefined };
    let page_token: string | undefined;
    do {
      const input = { ...call, query: { ...filter, page_token } };
      const { reply, headers } = await this.#connection.callWithHeaders('listSandboxes', input);
      yield* reply;
      page_token = headers['x-next-token'] as string | undefined;
    } while (page_token);
  }

  async get(id: string, call: CallOptions = {}): Promise<Sandbox> {
    return new Sandbox(this.#connection, await this.#connection.call('getSandbox', { ...call, params: { id } }));
  }

  /** `n` sandboxes, or an error and none. */
  async spawn(options: SpawnOptions): Promise<Sandbox[]> {
    const reply = await this.#spawn(options, false);
    return (reply as SandboxInfo[]).map((info) => new Sandbox(this.#connection, info));
  }

  /** One result per sandbox asked for: some may fail while others are fine. */
  async spawnSettled(options: SpawnOptions): Promise<Spawned[]> {
    const reply = await this.#spawn(options, true);
    const { results } = reply as Exclude<typeof reply, SandboxInfo[]>;
    return results.map((result) =>
      'sandbox' in result ? { sandbox: new Sandbox(this.#connection, result.sandbox) } : result,
    );
  }

  async kill(id: string, call: CallOptions = {}): Promise<void> {
    await this.#connection.call('killSandbox', { ...call, params: { id } });
  }

  async #spawn({ signal, timeout_ms = SPAWN_TIMEOUT_MS, ...body }: SpawnOptions, settle: boolean) {
    return this.#connection.call('spawn', { signal, timeout_ms, body, query: settle ? { settle } : {} });
  }
}

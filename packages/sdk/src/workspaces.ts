import type { Connection, Reply } from './connection.js';
import type { CallOptions } from './options.js';
import type { NetworkOptions } from './sandbox.js';

export type Workspace = Reply<'getWorkspace'>;

export interface CreateWorkspaceOptions extends CallOptions {
  name: string;
  snapshot_tag: string;
  per_child_netns?: boolean | undefined;
  memory_limit_mib?: number | undefined;
  guest_branch?: boolean | undefined;
  network?: NetworkOptions | undefined;
}

/** Named sandboxes that can be suspended. */
export class Workspaces {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  async list(call: CallOptions = {}): Promise<Workspace[]> {
    return this.#connection.call('listWorkspaces', call);
  }

  async get(name: string, call: CallOptions = {}): Promise<Workspace> {
    return this.#connection.call('getWorkspace', { ...call, params: { name } });
  }

  async create({ signal, timeout_ms, ...body }: CreateWorkspaceOptions): Promise<Workspace> {
    return this.#connection.call('createWorkspace', { signal, timeout_ms, body });
  }

  async suspend(name: string, { diff = false, ...call }: CallOptions & { diff?: boolean } = {}): Promise<Workspace> {
    return this.#connection.call('suspendWorkspace', { ...call, params: { name }, body: { diff } });
  }

  async resume(name: string, call: CallOptions = {}): Promise<Workspace> {
    return this.#connection.call('resumeWorkspace', { ...call, params: { name } });
  }

  async remove(name: string, call: CallOptions = {}): Promise<void> {
    await this.#connection.call('deleteWorkspace', { ...call, params: { name } });
  }
}

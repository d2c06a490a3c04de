import { readFileSync } from 'node:fs';
import { rootCertificates } from 'node:tls';
import type { Controller, SandboxRecord, Store } from '@forkd/controller';
import { Authority, askServers, Egress, type Settings } from '@forkd/egress';
import { ForkdError, type NetworkDecision } from '@forkd/protocol';
import type { FastifyBaseLogger } from 'fastify';
import type { Config } from './config.js';
import type { Tokens } from './tokens.js';

/** Nothing: of a VM that is no sandbox, or not yet. */
const CLOSED: Settings = { policy: { preset: 'none', allow: [], deny: [] }, rules: {} };

/** What leaves the sandboxes of a daemon. A VM is named by its place, which stays the same when its sandbox gets another id. */
export class Outlets {
  readonly authority: Authority;
  readonly egress: Egress;
  #controller: Controller | undefined;
  #log: FastifyBaseLogger | undefined;

  constructor({ data, egress: { dns, ca } }: Pick<Config, 'data' | 'egress'>, tokens: Tokens) {
    this.authority = new Authority(`${data}/egress`);
    this.egress = new Egress({
      authority: this.authority,
      lookUp: askServers(dns),
      roots: ca === undefined ? undefined : [...rootCertificates, readRoots(ca)],
      settingsOf: (place) => this.#settingsOf(place),
      mostOf: (owner) => tokens.reachOf(owner)?.max_connections,
      onDenied: (place, decision) => this.#denied(place, decision),
      onFlood: (place, dropped) =>
        this.#log?.warn({ sandbox: this.#recordAt(place)?.id, dropped }, 'a sandbox asks for more names than it may'),
    });
  }

  /** Before this, everything is closed: what was taken over from the daemon before gets its policy here. */
  open(controller: Controller, log: FastifyBaseLogger): () => void {
    this.#controller = controller;
    this.#log = log;
    for (const { id } of controller.sandboxes()) this.refresh(id);
    for (const { type, sandbox_id, message } of controller.events.since(0))
      if (type === 'network.lost') log.warn({ sandbox: sandbox_id }, message);
    return controller.events.listen(({ type, sandbox_id }) => {
      // Its VM is another one, which was started before its record named it.
      if (type === 'rolled_back' && sandbox_id !== undefined) this.refresh(sandbox_id);
    });
  }

  /** As its record says now. */
  refresh(id: string): void {
    const { store } = this.#controller!;
    const record = store.sandbox(id);
    if (record) this.egress.change(record.place, settings(store, record));
  }

  #settingsOf(place: string): Settings {
    const record = this.#recordAt(place);
    return record ? settings(this.#controller!.store, record) : CLOSED;
  }

  #recordAt(place: string): SandboxRecord | undefined {
    return this.#controller?.store.sandboxAt(place);
  }

  #denied(place: string, { kind, name, address, port, rule }: NetworkDecision): void {
    const record = this.#recordAt(place);
    if (!record) return;
    const where = `${name ?? address}${port === undefined ? '' : ` port ${port}`}`;
    const { id: sandbox_id, owner, snapshot_tag } = record;
    this.#controller!.events.tell('network.denied', {
      sandbox_id,
      owner,
      snapshot_tag,
      message: `${kind} ${where}: ${rule}`,
    });
    this.#log?.info({ sandbox: sandbox_id, kind, name, address, port, rule }, 'denied');
  }
}

function settings(store: Store, { id, policy, owner }: SandboxRecord): Settings {
  return { policy, rules: store.rules(id)?.rules ?? {}, owner };
}

function readRoots(file: string): string {
  try {
    const text = readFileSync(file, 'utf8');
    if (text.includes('-----BEGIN CERTIFICATE-----')) return text;
  } catch {
    // Said below.
  }
  throw new ForkdError('invalid_request', `--egress-ca: ${file} holds no certificates`, {
    hint: 'Name a file with certificates in PEM.',
  });
}

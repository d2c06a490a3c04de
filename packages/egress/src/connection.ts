import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import type { Authority } from './authority.js';
import { listsOf, type Verdict } from './decide.js';
import { type Dial, dialFirst } from './dial.js';
import type { HttpProxy, Origin } from './http-proxy.js';
import type { Names } from './names.js';
import type { Outlet } from './outlet.js';
import { peek } from './peek.js';
import { relay, reset } from './relay.js';
import { type Claim, type Destination, findRoute, type Route } from './route.js';
import type { Sniffed } from './sniff.js';

/** After this long without a word the other side may be one that speaks first. */
const QUIET_MS = 300;
/** How long a client may say nothing where nothing can be decided without it. */
const SILENT_MS = 5_000;
const IDLE_MS = 15 * 60_000;
const HANDSHAKE_MS = 10_000;

/** What all connections share. */
export interface ConnectionParts {
  names: Names;
  dial: Dial;
  authority: Authority;
  http: HttpProxy;
}

/** Where a connection has gone. */
interface Target extends Destination {
  name: string | undefined;
}

/** One connection that a sandbox has made, to whatever it thinks it is connected to. */
export class Connection implements Origin {
  /** Until it is known whether it may go anywhere. */
  isPending = true;
  readonly #targets = new Map<Socket, Target>();
  /** The host we speak for. */
  #speaksFor: string | undefined;

  constructor(
    readonly outlet: Outlet,
    readonly parts: ConnectionParts,
    readonly socket: Socket,
    readonly destination: Destination,
  ) {
    socket.allowHalfOpen = true;
    socket.setNoDelay(true).setKeepAlive(true, 60_000);
    socket.setTimeout(IDLE_MS, () => this.cut());
    socket.once('close', () => {
      for (const upstream of this.#targets.keys()) if (!upstream.writableEnded) reset(upstream);
    });
  }

  async run(): Promise<void> {
    try {
      await this.#run();
    } catch {
      this.cut();
    } finally {
      this.isPending = false;
    }
  }

  async #run(): Promise<void> {
    const seen = await peek(this.socket, QUIET_MS).seen;
    if (seen === 'gone') return this.cut();
    if (seen !== 'quiet') return this.#go(seen);
    const route = await this.findRoute({ name: undefined, isHidden: false });
    const said = route.allowed ? await this.#speakFirst(route) : await peek(this.socket, SILENT_MS).seen;
    if (said === 'quiet') return this.deny(route);
    if (said === 'gone') return this.cut();
    if (said !== 'relayed') await this.#go(said);
  }

  /** Connects before the client has said anything, and lets whoever speaks first decide. */
  async #speakFirst(route: Route): Promise<Sniffed | 'gone' | 'relayed' | 'quiet'> {
    const upstream = await this.connect(route);
    const client = peek(this.socket, IDLE_MS);
    const spoken = new Promise<'upstream'>((resolve) => {
      upstream.once('readable', () => resolve('upstream')).once('close', () => resolve('upstream'));
    });
    const first = await Promise.race([client.seen, spoken]);
    if (first !== 'upstream') {
      this.#targets.delete(upstream);
      upstream.destroy();
      return first;
    }
    // Servers of TLS and HTTP never speak first, so no name can be in what the client says.
    client.stop();
    await client.seen;
    this.#relay(upstream, route);
    return 'relayed';
  }

  async #go(seen: Sniffed): Promise<void> {
    const { outlet, parts } = this;
    const { allow, deny } = listsOf(outlet.policy);
    // Each request may be for another host.
    if (seen.kind === 'http' && allow.names.length + deny.names.length > 0)
      return parts.http.serve(this, this.socket, undefined);
    const route = await this.findRoute(seen);
    if (!route.allowed) return this.deny(route);
    const { name } = seen;
    if (seen.kind === 'tls' && name !== undefined && Object.hasOwn(outlet.settings.rules, name))
      return this.#terminate(name);
    this.#relay(await this.connect(route), route);
  }

  #relay(upstream: Socket, route: Route): void {
    this.allow(route, this.#targets.get(upstream)?.address);
    relay(this.socket, upstream);
  }

  /** Speaks for a host to the guest, to set headers on what it asks of it. */
  async #terminate(name: string): Promise<void> {
    const { parts, socket } = this;
    this.#speaksFor = name;
    const secureContext = parts.authority.contextFor(name);
    const secure = new TLSSocket(socket, { isServer: true, secureContext, ALPNProtocols: ['http/1.1'] });
    secure.on('error', () => this.cut());
    await new Promise<void>((resolve, reject) => {
      const late = setTimeout(() => reject(new Error('no handshake')), HANDSHAKE_MS);
      secure.once('secure', resolve).once('close', () => reject(new Error('closed')));
      secure.once('close', () => clearTimeout(late)).once('secure', () => clearTimeout(late));
    });
    parts.http.serve(this, secure, name);
  }

  findRoute(claim: Claim): Promise<Route> {
    return findRoute(this.outlet, this.parts.names, this.destination, claim);
  }

  /** Dials what was checked, and checks once more: meanwhile another policy may hold. */
  async connect({ addresses, name }: Route): Promise<Socket> {
    const { port } = this.destination;
    const { socket, address } = await dialFirst(this.parts.dial, addresses, port);
    const target = { address, port, name };
    const verdict = this.outlet.decide(target);
    if (this.socket.destroyed || !verdict.allowed) {
      socket.destroy();
      if (!verdict.allowed) this.deny(verdict);
      throw new Error('nobody waits for it any more');
    }
    this.#targets.set(socket, target);
    socket.once('close', () => this.#targets.delete(socket));
    return socket;
  }

  /** After the policy has changed. */
  recheck(): void {
    const { rules } = this.outlet.settings;
    if (this.#speaksFor !== undefined && !Object.hasOwn(rules, this.#speaksFor)) return void this.cut();
    const denied = [...this.#targets.values()]
      .map((target) => ({ target, verdict: this.outlet.decide(target) }))
      .find(({ verdict }) => !verdict.allowed);
    if (denied) this.deny({ ...denied.verdict, name: denied.target.name });
  }

  allow({ name, ...verdict }: Verdict & { name: string | undefined }, address?: string): void {
    this.isPending = false;
    const { port } = this.destination;
    this.outlet.note('tcp', verdict, { ...(name !== undefined && { name }), ...(address && { address }), port });
  }

  deny({ allowed, rule, name }: Verdict & { name?: string | undefined }): void {
    const { address, port } = this.destination;
    this.outlet.note('tcp', { allowed, rule }, { ...(name !== undefined && { name }), address, port });
    this.cut();
  }

  cut(): void {
    for (const upstream of this.#targets.keys()) reset(upstream);
    reset(this.socket);
  }
}

import { createSocket, type Socket } from 'node:dgram';
import { isIPv6 } from 'node:net';
import type { NetworkPolicy } from '@forkd/protocol';
import { decide, listsOf, type Verdict } from './decide.js';
import { type Outlet, plainAddress } from './outlet.js';
import type { Destination } from './route.js';

const MOST_FLOWS = 128;
const IDLE_MS = 60_000;
/** What waits to be sent; more is lost, as on any wire. */
const MOST_QUEUED = 1 << 20;
/** Until it is connected, which takes no longer than a moment. */
const MOST_WAITING = 16;

/** What a sandbox sends from one end to another. */
export interface Datagram {
  from: Destination;
  to: Destination;
  bytes: Buffer;
  /** With the first one between these ends: where the others arrive once it is claimed. */
  flow?: { socket: Socket; claim: () => void };
}

/** Where the UDP of a sandbox arrives; without a taker it is dropped before it gets here. */
export interface UdpPort {
  take(taker: ((datagram: Datagram) => void) | undefined): void;
}

const narrowed = new WeakMap<NetworkPolicy, NetworkPolicy>();

/** What of a policy is about UDP: all but the names it allows, because nobody can see which one a datagram is for. */
export function udpPolicy(policy: NetworkPolicy): NetworkPolicy {
  let narrow = narrowed.get(policy);
  if (!narrow) {
    narrow = { ...policy, allow: listsOf(policy).allow.ranges.map(({ text }) => text) };
    narrowed.set(policy, narrow);
  }
  return narrow;
}

/** The UDP of one sandbox. */
export class UdpFlows {
  readonly #flows = new Map<string, Flow>();

  constructor(
    private readonly outlet: Outlet,
    private readonly port: UdpPort | undefined,
    private readonly own: () => ReadonlySet<string>,
    /** Why there may be no more of them. */
    private readonly full: () => string | undefined,
  ) {
    this.recheck();
  }

  get open(): number {
    return this.#flows.size;
  }

  /** After the policy has changed. */
  recheck(): void {
    const { preset, allow } = udpPolicy(this.outlet.policy);
    const isOpen = preset !== 'none' || allow.length > 0;
    this.port?.take(isOpen ? (datagram) => this.#take(datagram) : undefined);
    for (const flow of this.#flows.values()) {
      const verdict = this.#decide(flow.to);
      if (verdict.allowed) continue;
      this.outlet.note('udp', verdict, flow.to);
      flow.close();
    }
  }

  close(): void {
    this.port?.take(undefined);
    for (const flow of this.#flows.values()) flow.close();
  }

  #decide(to: Destination): Verdict {
    return decide(udpPolicy(this.outlet.policy), to, this.own());
  }

  #take({ flow, from, to: given, bytes }: Datagram): void {
    const to = { address: plainAddress(given.address), port: given.port };
    const key = JSON.stringify([from, to]);
    if (flow && this.#begin(key, flow.socket, from, to)) flow.claim();
    this.#flows.get(key)?.send(bytes);
  }

  #begin(key: string, socket: Socket, from: Destination, to: Destination): boolean {
    const why = this.#flows.size >= MOST_FLOWS ? 'too many connections' : this.full();
    const verdict = why === undefined ? this.#decide(to) : { allowed: false, rule: why };
    this.outlet.note('udp', verdict, to);
    if (!verdict.allowed) {
      socket.close();
      return false;
    }
    this.#flows.get(key)?.close();
    const flow = new Flow(socket, from, to, this.outlet.counters, () => this.#flows.delete(key));
    this.#flows.set(key, flow);
    return true;
  }
}

/** What goes from one port of a sandbox to one of a host, and back. */
class Flow {
  readonly #upstream: Socket;
  readonly #idle = setTimeout(() => this.close(), IDLE_MS);
  /** What came before the upstream was connected. */
  #waiting: Buffer[] | undefined = [];
  #isClosed = false;

  constructor(
    private readonly socket: Socket,
    private readonly from: Destination,
    readonly to: Destination,
    private readonly counters: Outlet['counters'],
    private readonly onClosed: () => void,
  ) {
    this.#upstream = createSocket(isIPv6(to.address) ? 'udp6' : 'udp4');
    for (const each of [socket, this.#upstream]) each.on('error', () => this.close());
    socket.on('message', (bytes) => this.send(bytes));
    this.#upstream.on('message', (bytes) => this.#receive(bytes));
    this.#upstream.once('connect', () => {
      const waiting = this.#waiting ?? [];
      this.#waiting = undefined;
      for (const bytes of waiting) this.#pass(bytes);
    });
    // It hears that host and nobody else.
    this.#upstream.connect(to.port, to.address);
  }

  send(bytes: Buffer): void {
    this.#idle.refresh();
    this.counters.bytes_sent += bytes.length;
    if (!this.#waiting) this.#pass(bytes);
    else if (this.#waiting.length < MOST_WAITING) this.#waiting.push(bytes);
  }

  #pass(bytes: Buffer): void {
    if (this.#upstream.getSendQueueSize() < MOST_QUEUED) this.#upstream.send(bytes, () => {});
  }

  #receive(bytes: Buffer): void {
    this.#idle.refresh();
    this.counters.bytes_received += bytes.length;
    const { address, port } = this.from;
    if (this.socket.getSendQueueSize() < MOST_QUEUED) this.socket.send(bytes, port, address, () => {});
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    clearTimeout(this.#idle);
    this.socket.close();
    this.#upstream.close();
    this.onClosed();
  }
}

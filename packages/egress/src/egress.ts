import type { Socket as UdpSocket } from 'node:dgram';
import type { Server, Socket } from 'node:net';
import { networkInterfaces } from 'node:os';
import { type NetworkCounters, type NetworkDecision, normalAddress } from '@forkd/protocol';
import type { Authority } from './authority.js';
import { Connection, type ConnectionParts } from './connection.js';
import { keyOf } from './decide.js';
import { type Dial, dialDirectly } from './dial.js';
import { Dns } from './dns.js';
import { HttpProxy } from './http-proxy.js';
import { type LookUp, Names } from './names.js';
import { Outlet, plainAddress, type Settings } from './outlet.js';
import type { Destination } from './route.js';
import { UdpFlows, type UdpPort } from './udp.js';

const MOST_CONNECTIONS = 512;
const MOST_PENDING = 128;
/** Of all sandboxes of one owner. */
const MOST_OF_OWNER = 4_096;
/** How long the host's own addresses are believed. */
const OWN_MS = 5_000;

/** Where everything arrives that a sandbox sends: TCP to any address, and its questions about names. */
export interface Sockets {
  /** `localAddress` and `localPort` of a connection are where the sandbox wanted it to go. */
  tcp: Server;
  dns: UdpSocket;
  dnsTcp: Server;
  udp?: UdpPort;
}

export interface EgressOptions {
  authority: Authority;
  lookUp: LookUp;
  /** Whom to believe who a host is, in PEM. @default those of Node */
  roots?: string[] | undefined;
  /** Asked when a sandbox is attached. */
  settingsOf: (id: string) => Settings;
  /** How many connections an owner may have open. @default 4096 */
  mostOf?: (owner: string) => number | undefined;
  onDenied?: (id: string, decision: NetworkDecision) => void;
  onFlood?: (id: string, dropped: number) => void;
  /** For tests, where there is no network behind the sockets. */
  dial?: Dial;
  destinationOf?: (socket: Socket) => Destination;
  own?: () => ReadonlySet<string>;
}

interface Attached {
  outlet: Outlet;
  dns: Dns;
  connections: Set<Connection>;
  udp: UdpFlows;
}

/** Nothing leaves a sandbox but through here. */
export class Egress {
  readonly #attached = new Map<string, Attached>();
  readonly #past: NetworkCounters = { ...NOTHING };
  readonly #parts: ConnectionParts;
  readonly #options: EgressOptions;

  constructor(options: EgressOptions) {
    this.#options = options;
    const { authority, dial = dialDirectly, lookUp, roots } = options;
    this.#parts = { names: new Names(lookUp), dial, authority, http: new HttpProxy(roots) };
  }

  attach(id: string, { tcp, dns: questions, dnsTcp, udp: port }: Sockets): void {
    this.detach(id);
    const { settingsOf, onDenied = () => {}, onFlood = () => {}, own = ownAddresses } = this.#options;
    const outlet = new Outlet(id, settingsOf(id), { own, onDenied });
    const dns = new Dns(outlet, this.#parts.names, onFlood);
    const udp = new UdpFlows(outlet, port, own, () => this.#full(outlet));
    const attached = { outlet, dns, connections: new Set<Connection>(), udp };
    this.#attached.set(id, attached);
    dns.serve(questions, dnsTcp);
    tcp.on('connection', (socket) => this.#accept(attached, socket));
  }

  /** What is open is cut. The sockets belong to who has attached them. */
  detach(id: string): void {
    const attached = this.#attached.get(id);
    if (!attached) return;
    attached.dns.close();
    attached.udp.close();
    for (const connection of attached.connections) connection.cut();
    add(this.#past, this.report(id).counters);
    this.#past.open = 0;
    this.#attached.delete(id);
  }

  /** From now on; what is open and not allowed any more is cut before this returns. */
  change(id: string, settings: Settings): void {
    const attached = this.#attached.get(id);
    if (!attached) return;
    attached.outlet.settings = settings;
    attached.udp.recheck();
    for (const connection of attached.connections) connection.recheck();
  }

  report(id: string): { counters: NetworkCounters; decisions: NetworkDecision[] } {
    const attached = this.#attached.get(id);
    if (!attached) return { counters: { ...NOTHING }, decisions: [] };
    const { outlet, connections, udp } = attached;
    const counters = { ...outlet.counters, open: connections.size + udp.open };
    for (const { socket } of connections) {
      counters.bytes_sent += socket.bytesRead;
      counters.bytes_received += socket.bytesWritten;
    }
    return { counters, decisions: [...outlet.decisions] };
  }

  /** Of all there are and were. */
  totals(): NetworkCounters {
    const totals = { ...this.#past };
    for (const id of this.#attached.keys()) add(totals, this.report(id).counters);
    return totals;
  }

  close(): void {
    for (const id of [...this.#attached.keys()]) this.detach(id);
  }

  #accept(attached: Attached, socket: Socket): void {
    const { outlet, connections } = attached;
    socket.on('error', () => {});
    const { destinationOf = destination } = this.#options;
    if (this.#attached.get(outlet.id) !== attached) return void socket.resetAndDestroy();
    const connection = new Connection(outlet, this.#parts, socket, destinationOf(socket));
    const pending = [...connections].filter(({ isPending }) => isPending).length;
    if (connections.size >= MOST_CONNECTIONS || pending >= MOST_PENDING)
      return void connection.deny({ allowed: false, rule: 'too many connections' });
    const rule = this.#full(outlet);
    if (rule !== undefined) return void connection.deny({ allowed: false, rule });
    connections.add(connection);
    socket.once('close', () => {
      connections.delete(connection);
      outlet.counters.bytes_sent += socket.bytesRead;
      outlet.counters.bytes_received += socket.bytesWritten;
    });
    void connection.run();
  }

  /** Why the owner may have no more of them. */
  #full({ settings: { owner } }: Outlet): string | undefined {
    if (owner === undefined) return undefined;
    let open = 0;
    for (const { outlet, connections, udp } of this.#attached.values())
      if (outlet.settings.owner === owner) open += connections.size + udp.open;
    return open < (this.#options.mostOf?.(owner) ?? MOST_OF_OWNER) ? undefined : `too many connections of ${owner}`;
  }
}

const NOTHING: NetworkCounters = {
  allowed: 0,
  denied: 0,
  open: 0,
  bytes_sent: 0,
  bytes_received: 0,
  dns_answered: 0,
  dns_denied: 0,
  dns_dropped: 0,
};

function add(sum: NetworkCounters, more: NetworkCounters): void {
  for (const name of Object.keys(sum) as (keyof NetworkCounters)[]) sum[name] += more[name];
}

function destination({ localAddress = '', localPort = 0 }: Socket): Destination {
  return { address: plainAddress(localAddress), port: localPort };
}

let own = { at: -OWN_MS, addresses: new Set<string>() };

/** As `decide` and `widening` want them. */
export function ownAddresses(): ReadonlySet<string> {
  if (performance.now() - own.at > OWN_MS) {
    const found = Object.values(networkInterfaces()).flatMap((all) => (all ?? []).map(({ address }) => address));
    const keys = found.flatMap((text) => {
      const address = normalAddress(text);
      return address ? [keyOf(address)] : [];
    });
    own = { at: performance.now(), addresses: new Set(keys) };
  }
  return own.addresses;
}

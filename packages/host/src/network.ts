import type { ChildProcess } from 'node:child_process';
import type { Socket } from 'node:dgram';
import type { Server } from 'node:net';
import { z } from 'zod';

/** The addresses of both ends of the one wire in a network. */
export interface Wiring {
  guestMac: string;
  gatewayMac: string;
  /** Both in one /30. */
  guest4: string;
  gateway4: string;
  /** Both in one /64. */
  guest6: string;
  gateway6: string;
}

/** Where everything ends that a guest sends. Each listens for IPv4 (as `::ffff:1.2.3.4`) and IPv6. */
export interface NetworkSockets {
  /** Takes every TCP connection of the guest: `localAddress` and `localPort` are where the guest wanted to go. */
  tcp: Server;
  /** At port 53 of the gateway. */
  dns: Socket;
  dnsTcp: Server;
}

/** A namespace with a tap that the next process started with this number takes. */
export interface HostNetwork {
  number: number;
  sockets: NetworkSockets;
}

export function closeSockets({ tcp, dns, dnsTcp }: NetworkSockets): void {
  for (const socket of [tcp, dns, dnsTcp]) socket.close();
}

/** UDP that a guest sends from one end to another. */
export interface Datagram {
  from: { address: string; port: number };
  to: { address: string; port: number };
  bytes: Buffer;
  /** With the first one between these ends: where the others arrive once it is claimed. */
  flow?: { socket: Socket; claim: () => void };
}

/** As it comes from the helper. */
export interface Arrived extends Omit<Datagram, 'flow'> {
  socket: Socket | undefined;
}

const End = z.object({ address: z.string(), port: z.number() });
const Arrival = z.discriminatedUnion('kind', [
  z.object({ network: z.number(), kind: z.enum(['tcp', 'dns', 'dnsTcp']) }),
  z.object({ network: z.number(), kind: z.literal('udp'), from: End, to: End, bytes: z.hex() }),
]);

/** The sockets that the helper sends, by network, until they are taken. */
export class Arrivals {
  readonly #arrived = new Map<number, Partial<NetworkSockets>>();
  readonly #waiting = new Map<number, (sockets: NetworkSockets) => void>();
  /** Who is told of UDP, by the number of the listener. */
  readonly takers = new Map<number, (arrived: Arrived) => void>();

  constructor(child: ChildProcess) {
    child.on('message', (message, handle) => {
      const arrival = Arrival.parse(message);
      const { network, kind } = arrival;
      // Whatever a guest does to a socket, it is no reason for the program to end.
      (handle as Server | Socket | undefined)?.on('error', () => {});
      if (arrival.kind === 'udp') return this.#datagram(arrival, handle as Socket | undefined);
      // One half of a connection may end before the other: whoever answers decides.
      if (kind !== 'dns') Object.assign(handle as Server, { allowHalfOpen: true });
      this.#arrived.set(network, { ...this.#arrived.get(network), [kind]: handle });
      this.#deliver(network);
    });
  }

  take(network: number): Promise<NetworkSockets> {
    return new Promise((resolve) => {
      this.#waiting.set(network, resolve);
      this.#deliver(network);
    });
  }

  #datagram({ network, from, to, bytes }: z.infer<typeof Arrival> & { kind: 'udp' }, socket?: Socket): void {
    const taker = this.takers.get(network);
    if (taker) taker({ from, to, bytes: Buffer.from(bytes, 'hex'), socket });
    else socket?.close();
  }

  #deliver(network: number): void {
    const { tcp, dns, dnsTcp } = this.#arrived.get(network) ?? {};
    const resolve = this.#waiting.get(network);
    if (!tcp || !dns || !dnsTcp || !resolve) return;
    this.#arrived.delete(network);
    this.#waiting.delete(network);
    resolve({ tcp, dns, dnsTcp });
  }
}

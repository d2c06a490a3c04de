import type { Socket as Dgram } from 'node:dgram';
import type { Socket } from 'node:net';
import type { NetworkSockets } from '@forkd/host';
import type { UdpPort } from './udp-port.js';

/** What becomes of everything that guests send. */
export interface Uplink {
  /**
   * From here on the sockets are its to answer; they are closed by whoever made them. A VM is named by its place, which is its own
   * alone also while it takes over the id of another one. `sandbox` is whose VM it is, or will be; zygotes, parents and the like
   * are nobody's.
   */
  attach(place: string, sockets: NetworkSockets & { udp: UdpPort }, sandbox?: string): void;
  /** The VM has ended: its connections are to be ended too. */
  detach(place: string): void;
}

/** Lets nothing out: connections are closed, names are refused. */
export const closed: Uplink = {
  attach(_place, { tcp, dns, dnsTcp }) {
    const end = (socket: Socket): void => void socket.on('error', () => {}).resetAndDestroy();
    tcp.on('connection', end);
    dnsTcp.on('connection', end);
    dns.on('message', (query, { port, address }) => refuse(dns, query, port, address));
  },
  detach() {},
};

const HEADER = 12;

/** The header of the question, with the answer that it is refused. */
function refuse(dns: Dgram, query: Buffer, port: number, address: string): void {
  if (query.length < HEADER || query[2]! & 0x80) return;
  const answer = Buffer.alloc(HEADER);
  query.copy(answer, 0, 0, 2);
  answer[2] = 0x80 | (query[2]! & 0x79);
  answer[3] = 0x05;
  dns.send(answer, port, address, () => {});
}

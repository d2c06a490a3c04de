import type { Socket } from 'node:net';

export interface Peer {
  /** Came through the Unix socket, which only those can open whom its file mode lets. */
  local: boolean;
  address: string;
}

/**
 * Noted when a connection is accepted, and never asked of the socket later: one that is gone has no address any more,
 * like one that came through the Unix socket.
 */
const PEERS = new WeakMap<Socket, Peer>();

export function notePeer(socket: Socket, local: boolean): void {
  PEERS.set(socket, { local, address: local ? 'unix' : (socket.remoteAddress ?? 'gone') });
}

export function peerOf(socket: Socket): Peer {
  return PEERS.get(socket) ?? { local: false, address: 'unknown' };
}

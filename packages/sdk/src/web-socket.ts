import { connect } from 'node:net';
import WebSocket from 'ws';
import type { Connection } from './connection.js';
import type { CallOptions } from './options.js';
import { refusal, unreachable } from './refusal.js';

const PAYLOAD_LIMIT = 16 << 20;

type Address = ReturnType<Connection['address']>;

/** A socket that is being opened: who wants all it says listens before `opened` settles. `end` is called if the caller gives up. */
export function openSocket(
  { url, headers, socket: path }: Address,
  { signal, timeout_ms = 60_000 }: CallOptions,
  end: (socket: WebSocket) => void = (socket) => socket.terminate(),
): { socket: WebSocket; opened: Promise<void> } {
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
  const socket = new WebSocket(url, {
    headers,
    handshakeTimeout: timeout_ms,
    perMessageDeflate: false,
    maxPayload: PAYLOAD_LIMIT,
    ...(path !== undefined && { createConnection: () => connect(path) }),
  });
  const giveUp = (): void => end(socket);
  signal?.addEventListener('abort', giveUp, { once: true });
  socket.once('close', () => signal?.removeEventListener('abort', giveUp));
  const opened = new Promise<void>((resolve, reject) => {
    socket.once('open', resolve);
    socket.on('error', (cause) => reject(unreachable(cause)));
    socket.once('unexpected-response', (_, response) => void refusal(response).then(reject, reject));
  });
  return { socket, opened };
}

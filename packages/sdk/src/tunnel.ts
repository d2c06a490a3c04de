import { connect } from 'node:net';
import { Duplex } from 'node:stream';
import { ForkdError } from '@forkd/protocol';
import WebSocket from 'ws';
import type { Connection } from './connection.js';
import type { CallOptions } from './options.js';
import { refusal, unreachable } from './refusal.js';

/** A frame the daemon takes; larger writes become several. */
const FRAME_BYTES = 64 << 10;
const PAYLOAD_LIMIT = 16 << 20;
const NORMAL = 1000;
const NOTHING = Buffer.alloc(0);

/** A connection to a port of a sandbox. Ending it tells the program there; it may still answer. */
export async function openTunnel(
  connection: Connection,
  params: { id: string; port: number },
  { signal, timeout_ms = 60_000 }: CallOptions,
): Promise<Duplex> {
  const place = { id: params.id, port: String(params.port) };
  const { url, headers, socket: path } = connection.address('tunnel', { params: place });
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
  const socket = new WebSocket(url, {
    headers,
    handshakeTimeout: timeout_ms,
    perMessageDeflate: false,
    maxPayload: PAYLOAD_LIMIT,
    ...(path !== undefined && { createConnection: () => connect(path) }),
  });
  const stream = streamOf(socket);
  const end = (): unknown => stream.destroy(new ForkdError('cancelled', 'the connection was cancelled'));
  signal?.addEventListener('abort', end, { once: true });
  socket.once('close', () => signal?.removeEventListener('abort', end));
  await new Promise<void>((resolve, reject) => {
    socket.once('open', resolve);
    socket.on('error', (cause) => reject(unreachable(cause)));
    socket.once('unexpected-response', (_, response) => void refusal(response).then(reject, reject));
  });
  return stream;
}

/** An empty frame says that its sender has no more. */
function streamOf(socket: WebSocket): Duplex {
  const send = (data: Buffer, done: (error?: Error) => void): void => {
    if (socket.readyState === WebSocket.OPEN) socket.send(data, { binary: true }, done);
    else done(new ForkdError('unreachable', 'the connection to the port has ended'));
  };
  const stream = new Duplex({
    read: () => socket.resume(),
    write(chunk: Buffer, encoding, done) {
      const rest = chunk.subarray(FRAME_BYTES);
      send(chunk.subarray(0, FRAME_BYTES), (error) => {
        if (error || rest.length === 0) done(error);
        else this._write(rest, encoding, done);
      });
    },
    final: (done) => send(NOTHING, () => done()),
    destroy(error, done) {
      socket.terminate();
      done(error);
    },
  });
  let ended = false;
  socket.on('message', (data: Buffer) => {
    if (data.length === 0) {
      ended = true;
      stream.push(null);
    } else if (!stream.push(data)) socket.pause();
  });
  socket.on('error', () => {});
  socket.once('close', (code) => {
    if (!ended && code === NORMAL) stream.push(null);
    else if (!ended) stream.destroy(new ForkdError('unreachable', 'the connection to the port broke'));
    else stream.end();
  });
  return stream;
}

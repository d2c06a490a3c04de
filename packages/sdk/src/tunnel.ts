import { Duplex } from 'node:stream';
import { ForkdError } from '@forkd/protocol';
import WebSocket from 'ws';
import type { Connection } from './connection.js';
import type { CallOptions } from './options.js';
import { openSocket } from './web-socket.js';

/** A frame the daemon takes; larger writes become several. */
const FRAME_BYTES = 64 << 10;
const NORMAL = 1000;
const NOTHING = Buffer.alloc(0);

/** A connection to a port of a sandbox. Ending it tells the program there; it may still answer. */
export async function openTunnel(
  connection: Connection,
  params: { id: string; port: number },
  options: CallOptions,
): Promise<Duplex> {
  const place = { id: params.id, port: String(params.port) };
  const address = connection.address('tunnel', { params: place });
  const { socket, opened } = openSocket(address, options, () =>
    stream.destroy(new ForkdError('cancelled', 'the connection was cancelled')),
  );
  const stream = streamOf(socket);
  await opened;
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

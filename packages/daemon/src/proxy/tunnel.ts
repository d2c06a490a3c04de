import type { Duplex } from 'node:stream';
import type { WebSocket } from 'ws';
import { watchLife } from '../upgrade.js';

const NORMAL = 1000;
const BROKEN = 1011;
const NOTHING = Buffer.alloc(0);

/** Carries bytes between a port of a guest and a WebSocket. An empty frame says that its sender has no more. */
export async function bridge(socket: WebSocket, stream: Duplex): Promise<void> {
  const alive = watchLife(socket);
  socket.on('error', () => {});
  socket.once('close', () => stream.destroy());
  socket.on('message', (data: Buffer, isBinary) => {
    alive();
    if (!isBinary) return socket.close(1003, 'binary frames only');
    if (data.length === 0) stream.end();
    // No more is taken from the client than the guest takes.
    else if (!stream.write(data, () => socket.resume())) socket.pause();
  });
  stream.on('error', () => {});
  const ended = new Promise<void>((resolve) => stream.once('close', resolve));
  try {
    for await (const chunk of stream.iterator({ destroyOnReturn: false })) {
      await sent(socket, chunk as Buffer);
      alive();
    }
    await sent(socket, NOTHING);
    // The guest has no more to say, but may still listen.
    await ended;
    socket.close(NORMAL);
  } catch {
    socket.close(BROKEN, 'the connection to the port broke');
  }
}

function sent(socket: WebSocket, data: Buffer): Promise<void> {
  return new Promise((resolve, reject) =>
    socket.send(data, { binary: true }, (error) => (error ? reject(error) : resolve())),
  );
}

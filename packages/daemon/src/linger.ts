import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';

/** How long what a refused client still sends is dropped: a reset could take the answer along. */
const LINGER_MS = 1_000;

/** Says the last words on a connection, and hears out who is at the other end. */
export function endAndLinger(socket: Duplex, lastWords?: string): void {
  socket.resume();
  socket.end(lastWords);
  setTimeout(() => socket.destroy(), LINGER_MS).unref();
}

/** Before an answer after which the connection is closed. */
export function heardOut(request: IncomingMessage): Promise<void> {
  return new Promise((resolve) => {
    if (request.complete) return resolve();
    const done = (): void => resolve();
    request.once('end', done).once('close', done).once('error', done).resume();
    setTimeout(done, LINGER_MS).unref();
  });
}

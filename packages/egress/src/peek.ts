import type { Socket } from 'node:net';
import { HIDDEN, OTHER, type Sniffed, sniff } from './sniff.js';

/** From its first byte, a connection has this long to say where it is meant to go. */
const SNIFF_MS = 5_000;

/** Looks at the first bytes and leaves them to be read. `quiet`: none came in time. `gone`: nobody waits any more. */
export function peek(socket: Socket, quietMs: number): { seen: Promise<Sniffed | 'quiet' | 'gone'>; stop: () => void } {
  let stop = (): void => {};
  const seen = new Promise<Sniffed | 'quiet' | 'gone'>((resolve) => {
    let bytes = Buffer.alloc(0);
    const done = (result: Sniffed | 'quiet' | 'gone'): void => {
      clearTimeout(timer);
      socket.off('readable', look).off('end', ended).off('close', closed);
      if (bytes.length > 0 && !socket.readableEnded && !socket.destroyed) socket.unshift(bytes);
      resolve(result);
    };
    let timer = setTimeout(() => done('quiet'), quietMs);
    const look = (): void => {
      for (let chunk = socket.read() as Buffer | null; chunk; chunk = socket.read() as Buffer | null) {
        if (bytes.length === 0) {
          clearTimeout(timer);
          timer = setTimeout(() => done(HIDDEN), SNIFF_MS);
        }
        bytes = Buffer.concat([bytes, chunk]);
      }
      const result = sniff(bytes);
      if (result !== 'more') done(result);
    };
    // Who says nothing and wants to hear something may be a client of a server that speaks first.
    const ended = (): void => done(bytes.length === 0 ? OTHER : 'gone');
    const closed = (): void => done('gone');
    stop = () => done('quiet');
    if (socket.destroyed) return closed();
    if (socket.readableEnded) return ended();
    socket.on('readable', look).on('end', ended).on('close', closed);
    if (socket.readableLength > 0) look();
  });
  return { seen, stop };
}

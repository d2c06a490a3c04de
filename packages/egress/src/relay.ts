import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';

/** Bytes both ways, no faster than the slower side takes them. Each end is passed on as it comes: in order, or broken off. */
export function relay(one: Duplex, other: Duplex): void {
  for (const [from, to] of [
    [one, other],
    [other, one],
  ] as const) {
    from.on('error', () => reset(to));
    from.on('close', () => {
      // One that was cut without an end of its own.
      if (!from.readableEnded || !from.writableFinished) reset(to);
    });
    if (from.readableEnded) to.end();
    else from.pipe(to);
  }
}

/** So that the other end knows that this was no orderly end. */
export function reset(socket: Duplex): void {
  if (socket.destroyed) return;
  // Node never closes one that is reset while its end is being sent.
  const canReset = 'resetAndDestroy' in socket && !('encrypted' in socket) && !socket.writableEnded;
  if (canReset) (socket as Socket).resetAndDestroy();
  else socket.destroy();
}

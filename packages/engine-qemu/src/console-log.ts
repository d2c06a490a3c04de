import type { Socket } from 'node:net';
import { connectUnix } from './connect.js';

/** What a guest prints is untrusted and may never end: only this much of it is kept. */
const KEEP_BYTES = 64 << 10;

/** The most recent console output of one VM. */
export class ConsoleLog {
  #socket: Socket | undefined;
  #ring: Buffer | undefined;
  #written = 0;

  async follow(path: string): Promise<void> {
    const socket = await connectUnix(path);
    this.#socket = socket;
    socket.unref();
    socket.on('error', () => {});
    socket.on('data', (chunk) => this.#keep(chunk));
  }

  /** Settles when everything that was printed has been read, or with the patience of whoever waits. */
  async drained(withinMs: number): Promise<void> {
    const socket = this.#socket;
    if (!socket || socket.closed) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, withinMs);
      socket.once('close', () => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  text(): string {
    if (!this.#ring) return '';
    const at = this.#written % KEEP_BYTES;
    const older = this.#written > KEEP_BYTES ? this.#ring.subarray(at) : Buffer.alloc(0);
    return Buffer.concat([older, this.#ring.subarray(0, at || Math.min(this.#written, KEEP_BYTES))]).toString('utf8');
  }

  close(): void {
    this.#socket?.destroy();
  }

  #keep(chunk: Buffer): void {
    this.#ring ??= Buffer.alloc(KEEP_BYTES);
    for (let rest = chunk.subarray(-KEEP_BYTES); rest.length > 0; ) {
      const copied = rest.copy(this.#ring, this.#written % KEEP_BYTES);
      this.#written += copied;
      rest = rest.subarray(copied);
    }
  }
}

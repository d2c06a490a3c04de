import { on } from 'node:events';
import { ForkdError, type PtyInput, PtyOutput } from '@forkd/protocol';
import WebSocket from 'ws';
import type { Connection } from './connection.js';
import type { CallOptions } from './options.js';
import { knownCode } from './refusal.js';
import { openSocket } from './web-socket.js';

export interface PtyOptions extends CallOptions {
  cols?: number | undefined;
  rows?: number | undefined;
  /** A line for the shell; without it an interactive shell. */
  command?: string | undefined;
  cwd?: string | undefined;
  user?: string | undefined;
  term?: string | undefined;
}

export type PtyExit = Extract<PtyOutput, { type: 'exit' }>;

const BUFFERED_MESSAGES = 64;

/** A terminal in a sandbox: iterate over what it prints, `write` what is typed. */
export class Pty implements AsyncIterable<Uint8Array> {
  /** How the program ended; rejects when the connection broke before. */
  readonly exit: Promise<PtyExit>;
  readonly #socket: WebSocket;
  readonly #output: AsyncIterable<[Buffer, boolean]>;

  private constructor(socket: WebSocket) {
    this.#socket = socket;
    this.#output = on(socket, 'message', {
      close: ['close'],
      highWaterMark: BUFFERED_MESSAGES,
      lowWaterMark: 1,
    } as object) as AsyncIterable<[Buffer, boolean]>;
    this.exit = new Promise((resolve, reject) => {
      socket.on('message', (data: Buffer, isBinary) => {
        if (isBinary) return;
        const frame = parseFrame(data);
        if (frame?.type === 'exit') resolve(frame);
        else if (frame) reject(new ForkdError(knownCode(frame.code), frame.error, { hint: frame.hint }));
      });
      socket.once('close', () => reject(new ForkdError('unreachable', 'the connection ended before the program did')));
    });
    // Who only reads the output must not be ended by a promise nobody waits for.
    this.exit.catch(() => {});
  }

  static async open(connection: Connection, id: string, options: PtyOptions = {}): Promise<Pty> {
    const { signal, timeout_ms, ...query } = options;
    const address = connection.address('pty', { params: { id }, query });
    const { socket, opened } = openSocket(address, { signal, timeout_ms });
    const pty = new Pty(socket);
    await opened;
    return pty;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    for await (const [data, isBinary] of this.#output) {
      if (!isBinary) return;
      yield data;
    }
  }

  write(data: Uint8Array | string): void {
    if (this.#isOpen) this.#socket.send(Buffer.from(data as string), { binary: true });
  }

  resize(cols: number, rows: number): void {
    const frame: PtyInput = { type: 'resize', cols, rows };
    if (this.#isOpen) this.#socket.send(JSON.stringify(frame));
  }

  close(): void {
    this.#socket.terminate();
  }

  get #isOpen(): boolean {
    return this.#socket.readyState === WebSocket.OPEN;
  }
}

function parseFrame(data: Buffer): PtyOutput | undefined {
  try {
    return PtyOutput.safeParse(JSON.parse(data.toString())).data;
  } catch {
    return undefined;
  }
}

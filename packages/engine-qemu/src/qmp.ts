import type { Socket } from 'node:net';
import { ForkdError } from '@forkd/protocol';
import { z } from 'zod';
import { connectUnix } from './connect.js';

const Reply = z.object({ return: z.unknown().optional(), error: z.object({ desc: z.string() }).optional() });

/** QMP replies that forkd asks for are far below this. */
const MAX_LINE_BYTES = 1 << 20;

/** QEMU's control socket: one command at a time, events are skipped. */
export class Qmp {
  readonly closed: Promise<void>;
  #socket: Socket;
  #text = '';
  #waiting: { resolve: (line: string) => void; reject: (error: Error) => void } | undefined;
  #lines: string[] = [];
  #queue: Promise<unknown> = Promise.resolve();

  static async connect(path: string): Promise<Qmp> {
    const qmp = new Qmp(await connectUnix(path));
    await qmp.#line(10_000);
    await qmp.execute('qmp_capabilities');
    return qmp;
  }

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.setEncoding('utf8');
    socket.on('data', (chunk: string) => this.#read(chunk));
    socket.on('error', () => {});
    this.closed = new Promise((resolve) => socket.once('close', () => resolve()));
    void this.closed.then(() => this.#fail('closed its control socket'));
  }

  /** Runs one command; commands of several callers are run in turn. */
  execute(command: string, args: Record<string, unknown> = {}, timeoutMs = 30_000): Promise<unknown> {
    const result = this.#queue.then(() => this.#run(command, args, timeoutMs));
    this.#queue = result.catch(() => {});
    return result;
  }

  close(): void {
    this.#socket.destroy();
  }

  async #run(command: string, args: Record<string, unknown>, timeoutMs: number): Promise<unknown> {
    this.#socket.write(`${JSON.stringify({ execute: command, arguments: args })}\n`);
    for (;;) {
      const reply = Reply.safeParse(JSON.parse(await this.#line(timeoutMs)));
      if (reply.data?.error) throw new ForkdError('internal', `QEMU refused ${command}: ${reply.data.error.desc}`);
      if (reply.data && 'return' in reply.data) return reply.data.return;
    }
  }

  async #line(timeoutMs: number): Promise<string> {
    const ready = this.#lines.shift();
    if (ready !== undefined) return ready;
    if (this.#socket.destroyed) throw new ForkdError('vmm_exited', 'QEMU has closed its control socket');
    const line = new Promise<string>((resolve, reject) => {
      this.#waiting = { resolve, reject };
    });
    const timer = setTimeout(() => {
      this.#fail(`did not answer within ${timeoutMs} ms`);
      this.#socket.destroy();
    }, timeoutMs);
    try {
      return await line;
    } finally {
      clearTimeout(timer);
    }
  }

  #read(chunk: string): void {
    const lines = (this.#text + chunk).split('\n');
    this.#text = lines.pop() ?? '';
    if (this.#text.length > MAX_LINE_BYTES) this.#socket.destroy();
    this.#lines.push(...lines.filter((line) => line.trim() !== '' && !line.includes('"event":')));
    const waiting = this.#waiting;
    const first = waiting && this.#lines.shift();
    if (waiting && first !== undefined) {
      this.#waiting = undefined;
      waiting.resolve(first);
    }
  }

  #fail(what: string): void {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    waiting?.reject(new ForkdError('vmm_exited', `QEMU ${what}`));
  }
}

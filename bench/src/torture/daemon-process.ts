import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const MAIN = fileURLToPath(new URL('../../../packages/daemon/dist/main.js', import.meta.url));

/** A daemon that is started again and again on the same data directory. */
export class DaemonProcess {
  url = '';
  #child: ChildProcess | undefined;

  constructor(
    private readonly data: string,
    private readonly recipes: string,
  ) {}

  /** Settles when it answers. */
  async start(): Promise<void> {
    const args = [MAIN, '--bind', '127.0.0.1:0', '--data', this.data, '--recipes', this.recipes];
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    const log = createWriteStream(`${this.data}/daemon.log`, { flags: 'a' });
    child.stderr.pipe(log);
    this.#child = child;
    this.url = await new Promise<string>((found, failed) => {
      child.once('exit', (code) => failed(new Error(`the daemon ended with ${code}: ${this.lastWords()}`)));
      child.stdout.on('data', (chunk: Buffer) => {
        log.write(chunk);
        const address = /http:\/\/127\.0\.0\.1:\d+/.exec(chunk.toString());
        if (address) found(address[0]);
      });
    });
  }

  get pid(): number {
    return this.#child?.pid ?? 0;
  }

  /** Of the host helper it has started. */
  get helper(): number {
    return Number(readFileSync(`/proc/${this.pid}/task/${this.pid}/children`, 'utf8').split(' ')[0]);
  }

  /** Settles when the daemon is gone. Killing its helper ends it too. */
  async kill(victims: ('daemon' | 'helper')[]): Promise<void> {
    const ended = once(this.#child!, 'exit');
    const pids = { daemon: this.pid, helper: this.helper };
    for (const victim of victims) process.kill(pids[victim], 'SIGKILL');
    await ended;
  }

  async stop(): Promise<number | null> {
    const ended = once(this.#child!, 'exit');
    this.#child!.kill('SIGTERM');
    const [code] = await ended;
    return code;
  }

  lastWords(): string {
    return readFileSync(`${this.data}/daemon.log`, 'utf8').slice(-2000);
  }
}

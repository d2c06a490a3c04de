import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, fstatSync, openSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const PROGRAM = fileURLToPath(new URL('../../../bin/forkd-controller', import.meta.url));

const POLL_MS = 10;

/** A daemon that is started again and again on the same data directory. */
export class DaemonProcess {
  url = '';
  #child: ChildProcess | undefined;
  readonly #log: string;

  constructor(
    private readonly data: string,
    private readonly recipes: string,
  ) {
    this.#log = `${data}/daemon.log`;
  }

  /** Settles when it answers. */
  async start(): Promise<void> {
    const args = ['--bind', '127.0.0.1:0', '--data', this.data, '--recipes', this.recipes];
    // Straight into a file: a program that measures has no time to copy what the daemon says.
    const file = openSync(this.#log, 'a');
    const before = fstatSync(file).size;
    const child = spawn(PROGRAM, args, { stdio: ['ignore', file, file] });
    closeSync(file);
    this.#child = child;
    for (this.url = ''; this.url === ''; await sleep(POLL_MS)) {
      const said = readFileSync(this.#log).subarray(before).toString();
      this.url = /http:\/\/127\.0\.0\.1:\d+/.exec(said)?.[0] ?? '';
      if (this.url === '' && (child.exitCode ?? child.signalCode) !== null)
        throw new Error(`the daemon ended with ${child.exitCode ?? child.signalCode}: ${this.lastWords()}`);
    }
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
    return readFileSync(this.#log, 'utf8').slice(-2000);
  }
}

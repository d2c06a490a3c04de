import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { leaks, NO_LEAKS } from '@forkd/controller';
import { expect } from 'vitest';

const REPOSITORY = fileURLToPath(new URL('../../..', import.meta.url));
const IMAGES = resolve(process.env.FORKD_DATA ?? `${REPOSITORY}/.forkd`, 'images');
const MAIN = `${REPOSITORY}/packages/daemon/dist/main.js`;

export const TOKEN = 'a-token-that-is-long-enough';

/** The real daemon as a process of its own, with a data directory of its own on top of the shared images. */
export class DaemonFixture {
  process!: ChildProcess;
  url = '';

  private constructor(
    /** Holds nothing but the data directory, so that whatever else appears in it was written by mistake. */
    readonly parent: string,
    readonly more: string[],
  ) {}

  static async start(...more: string[]): Promise<DaemonFixture> {
    const parent = mkdtempSync(`${tmpdir()}/forkd-daemon-`);
    mkdirSync(IMAGES, { recursive: true });
    mkdirSync(`${parent}/data`);
    symlinkSync(IMAGES, `${parent}/data/images`);
    writeFileSync(`${parent}/token`, `${TOKEN}\n`, { mode: 0o600 });
    const daemon = new DaemonFixture(parent, more);
    await daemon.launch();
    return daemon;
  }

  /** The first one, or the next after one that has ended. */
  async launch(): Promise<void> {
    const args = [MAIN, '--bind', '127.0.0.1:0', '--data', this.data, '--token-file', `${this.parent}/token`];
    const daemon = spawn(process.execPath, [...args, ...this.more], { stdio: ['ignore', 'pipe', 'inherit'] });
    this.process = daemon;
    this.url = await new Promise<string>((found, failed) => {
      daemon.once('exit', () => failed(new Error('the daemon ended')));
      daemon.stdout.on('data', (chunk: Buffer) => {
        const address = /http:\/\/127\.0\.0\.1:\d+/.exec(chunk.toString());
        if (address) found(address[0]);
      });
    });
  }

  get data(): string {
    return `${this.parent}/data`;
  }

  /** Ends what runs, then the daemon. */
  async stop(): Promise<void> {
    const { body } = await this.call('GET', '/v1/sandboxes');
    for (const { id } of body) await this.call('DELETE', `/v1/sandboxes/${id}`);
    this.process.kill('SIGTERM');
    await once(this.process, 'exit');
    expect(this.process.exitCode).toBe(0);
    expect(leaks(this.data)).toEqual(NO_LEAKS);
    rmSync(this.parent, { recursive: true });
  }

  fetch(method: string, path: string, body?: unknown, headers: Record<string, string> = {}, signal?: AbortSignal) {
    const json = body === undefined ? {} : { 'content-type': 'application/json' };
    return fetch(this.url + path, {
      method,
      headers: { authorization: `Bearer ${TOKEN}`, ...json, ...headers },
      ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
      ...(signal && { signal }),
    });
  }

  async call(method: string, path: string, body?: unknown, headers: Record<string, string> = {}) {
    const reply = await this.fetch(method, path, body, headers);
    const text = await reply.text();
    const type = reply.headers.get('content-type') ?? '';
    return { status: reply.status, headers: reply.headers, body: type.includes('json') ? JSON.parse(text) : text };
  }

  /** Resident memory of the daemon itself. */
  rssMib(): number {
    return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${this.process.pid}/status`, 'utf8'))?.[1]) / 1024;
  }
}

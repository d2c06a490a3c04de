import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { type IncomingHttpHeaders, type RequestOptions, request } from 'node:http';
import { request as tlsRequest } from 'node:https';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { leaks, NO_LEAKS } from '@forkd/controller';
import type { SandboxInfo } from '@forkd/protocol';
import { expect } from 'vitest';

const REPOSITORY = fileURLToPath(new URL('../../..', import.meta.url));
const IMAGES = resolve(process.env.FORKD_DATA ?? `${REPOSITORY}/.forkd`, 'images');
const MAIN = `${REPOSITORY}/packages/daemon/dist/main.js`;

export interface Answer {
  status: number;
  headers: IncomingHttpHeaders;
  text: string;
  // biome-ignore lint/suspicious/noExplicitAny: what it holds is what the test is about.
  body: any;
}

export interface CallOptions extends RequestOptions {
  method?: string;
  token?: string;
  body?: string;
}

/** A real daemon of its own in its own data directory. */
export class TestDaemon implements AsyncDisposable {
  readonly output: string[] = [];
  #ended: Promise<number | null>;

  private constructor(
    readonly root: string,
    readonly process: ChildProcess,
  ) {
    this.#ended = new Promise((done) => process.once('exit', done));
    for (const stream of [process.stdout!, process.stderr!])
      stream.on('data', (chunk: Buffer) => this.output.push(chunk.toString()));
  }

  static async start(args: string[] = [], root = temporaryData()): Promise<TestDaemon> {
    const daemon = TestDaemon.launch(args, root);
    await daemon.prints(args.includes('none') ? /listening on/ : /listening on http/);
    return daemon;
  }

  /** Does not wait for it to listen. */
  static launch(args: string[], root = temporaryData()): TestDaemon {
    const env = { PATH: process.env.PATH, HOME: process.env.HOME };
    const child = spawn(process.execPath, [MAIN, '--bind', '127.0.0.1:0', '--data', root, ...args], { env });
    return new TestDaemon(root, child);
  }

  /** Of the host helper it has started. */
  get helper(): number {
    const { pid } = this.process;
    return Number(readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ')[0]);
  }

  get log(): string {
    return this.output.join('');
  }

  get url(): string {
    return /https?:\/\/[^"\s]+:\d+/.exec(this.log)![0];
  }

  async prints(pattern: RegExp): Promise<void> {
    const ended = this.#ended.then(() => true);
    while (!pattern.test(this.log)) {
      const gone = await Promise.race([ended, new Promise((done) => setTimeout(done, 20))]);
      if (gone === true && !pattern.test(this.log))
        throw new Error(`it ended without printing ${pattern}:\n${this.log}`);
    }
  }

  signal(name: NodeJS.Signals): void {
    this.process.kill(name);
  }

  /** SIGHUP, and waits until everything has been read again or kept. */
  async reload(): Promise<void> {
    const before = this.output.length;
    this.signal('SIGHUP');
    while (!/: audit log/.test(this.output.slice(before).join(''))) await new Promise((done) => setTimeout(done, 10));
  }

  ended(): Promise<number | null> {
    return this.#ended;
  }

  call(path: string, options: CallOptions = {}): Promise<Answer> {
    return call(options.socketPath ? 'http://localhost' : this.url, path, options);
  }

  say(method: string, path: string, body?: object): Promise<Answer> {
    return this.call(path, { method, ...(body && { body: JSON.stringify(body) }) });
  }

  async spawn(tag: string, more = {}): Promise<string> {
    const { status, body } = await this.say('POST', '/v1/sandboxes', { snapshot_tag: tag, ...more });
    expect(status, JSON.stringify(body)).toBe(201);
    return (body as SandboxInfo[])[0]!.id;
  }

  /** What a command prints that ends well. */
  async shell(id: string, command: string, stdin = ''): Promise<string> {
    const { body } = await this.say('POST', `/v1/sandboxes/${id}/exec`, { args: ['sh', '-c', command], stdin });
    expect(body.exit_code, JSON.stringify(body)).toBe(0);
    return body.stdout.trim();
  }

  async killAll(): Promise<void> {
    for (const { id } of (await this.say('GET', '/v1/sandboxes')).body) await this.say('DELETE', `/v1/sandboxes/${id}`);
  }

  /** Ends what runs, then the daemon: nothing may be left. */
  async stop(): Promise<void> {
    await this.killAll();
    this.signal('SIGTERM');
    expect(await this.ended()).toBe(0);
    expect(leaks(this.root)).toEqual(NO_LEAKS);
    await this[Symbol.asyncDispose]();
  }

  /** Sends bytes as they are, and gives everything that comes back until the connection closes. */
  async raw(bytes: string, keepOpen = false): Promise<string> {
    let received = '';
    const socket = connect(Number(new URL(this.url).port), '127.0.0.1');
    socket.on('data', (chunk) => {
      received += chunk;
    });
    if (keepOpen) socket.write(bytes);
    else socket.end(bytes);
    await new Promise((done) => socket.on('close', done).on('error', done));
    return received;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.signal('SIGTERM');
    const giveUp = setTimeout(() => this.signal('SIGKILL'), 10_000);
    await this.#ended;
    clearTimeout(giveUp);
    if (readFileSync('/proc/self/mounts', 'utf8').includes(` ${this.root} `)) execFileSync('umount', [this.root]);
    rmSync(this.root, { recursive: true, force: true });
  }
}

/** `size`: on a disk of its own that is no larger. */
export function temporaryData(size?: string): string {
  const root = mkdtempSync(`${tmpdir()}/forkd-daemon-`);
  if (size) execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${size}`, 'forkd-test', root]);
  mkdirSync(IMAGES, { recursive: true });
  symlinkSync(IMAGES, `${root}/images`);
  return root;
}

/** A folder with the recipe `plain`: without a language kernel its guest is up in a few seconds. */
export function plainRecipes(root: string): string {
  const text = readFileSync(`${REPOSITORY}/recipes/python-numpy/recipe.toml`, 'utf8');
  const plain = text
    .slice(0, text.indexOf('[warmup]'))
    .replace(/memory_mib = \d+/, 'memory_mib = 128')
    .replace(/disk_mib = \d+/, 'disk_mib = 64');
  mkdirSync(`${root}/recipes/plain`, { recursive: true });
  writeFileSync(`${root}/recipes/plain/recipe.toml`, plain);
  return `${root}/recipes`;
}

export function call(url: string, path: string, options: CallOptions = {}): Promise<Answer> {
  const { token, body, headers, ...rest } = options;
  const send = url.startsWith('https:') ? tlsRequest : request;
  return new Promise((done, failed) => {
    const sent = send(new URL(url), {
      path,
      agent: false,
      ...rest,
      headers: {
        ...(token !== undefined && { authorization: `Bearer ${token}` }),
        ...(body !== undefined && { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }),
        ...headers,
      },
    });
    sent.on('error', failed);
    sent.on('response', (reply) => {
      let text = '';
      reply.on('data', (chunk) => {
        text += chunk;
      });
      reply.on('error', failed);
      reply.on('end', () => {
        const json = /json/.test(reply.headers['content-type'] ?? '');
        done({
          status: reply.statusCode!,
          headers: reply.headers,
          text,
          body: json && text !== '' ? JSON.parse(text) : text,
        });
      });
    });
    sent.end(body);
  });
}

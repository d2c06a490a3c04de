import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { type IncomingHttpHeaders, type RequestOptions, request } from 'node:http';
import { request as tlsRequest } from 'node:https';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { leaks, NO_LEAKS } from '@forkd/controller';
import type { SandboxInfo } from '@forkd/protocol';
import { expect } from 'vitest';

const REPOSITORY = fileURLToPath(new URL('../../..', import.meta.url));
const SHARED = resolve(process.env.FORKD_DATA ?? `${REPOSITORY}/.forkd`);
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

/** The token of a daemon that wants one. */
export const TOKEN = 'a-token-that-is-long-enough';

/** A real daemon of its own in its own data directory. */
export class TestDaemon implements AsyncDisposable {
  output: string[] = [];
  process!: ChildProcess;
  #ended!: Promise<number | null>;

  private constructor(
    readonly root: string,
    private readonly args: string[],
    private readonly token?: string,
  ) {
    this.#launch();
  }

  static async start(args: string[] = [], root = temporaryData()): Promise<TestDaemon> {
    const daemon = TestDaemon.launch(args, root);
    await daemon.#listens();
    return daemon;
  }

  /** One that wants `TOKEN`, which goes with every call. Its data directory is alone in another, with the token. */
  static async secured(...args: string[]): Promise<TestDaemon> {
    const parent = mkdtempSync(`${tmpdir()}/forkd-daemon-`);
    writeFileSync(`${parent}/token`, `${TOKEN}\n`, { mode: 0o600 });
    const root = dataDirectory(`${parent}/data`);
    const daemon = new TestDaemon(root, ['--token-file', `${parent}/token`, ...args], TOKEN);
    await daemon.#listens();
    return daemon;
  }

  /** With the recipe `plain`, and a snapshot of it of the same name. */
  static async plain(...args: string[]): Promise<TestDaemon> {
    const root = temporaryData();
    const daemon = await TestDaemon.start(['--recipes', plainRecipes(root), ...args], root);
    expect((await daemon.say('POST', '/v1/snapshots', { tag: 'plain', recipe: 'plain' })).status).toBe(201);
    return daemon;
  }

  /** Does not wait for it to listen. */
  static launch(args: string[], root = temporaryData()): TestDaemon {
    return new TestDaemon(root, args);
  }

  /** The next one, after this one has ended. */
  async restart(): Promise<void> {
    await this.#ended;
    this.output = [];
    this.#launch();
    await this.#listens();
  }

  #launch(): void {
    const env = { PATH: process.env.PATH, HOME: process.env.HOME };
    const args = [MAIN, '--bind', '127.0.0.1:0', '--data', this.root, ...this.args];
    const child = spawn(process.execPath, args, { env });
    const { output } = this;
    for (const stream of [child.stdout, child.stderr])
      stream.on('data', (chunk: Buffer) => output.push(chunk.toString()));
    this.process = child;
    this.#ended = new Promise((done) => child.once('exit', done));
  }

  #listens(): Promise<void> {
    return this.prints(this.args.includes('none') ? /listening on/ : /listening on http/);
  }

  /** Holds the data directory of one that was started with a token. */
  get parent(): string {
    return dirname(this.root);
  }

  /** Resident memory of the daemon itself. */
  rssMib(): number {
    return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${this.process.pid}/status`, 'utf8'))?.[1]) / 1024;
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
    const token = this.token === undefined ? {} : { token: this.token };
    return call(options.socketPath ? 'http://localhost' : this.url, path, { ...token, ...options });
  }

  say(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<Answer> {
    return this.call(path, { method, headers, ...(body !== undefined && { body: textOf(body) }) });
  }

  /** For answers that are read as they come. */
  fetch(method: string, path: string, body?: unknown, headers: Record<string, string> = {}, signal?: AbortSignal) {
    return fetch(this.url + path, {
      method,
      headers: {
        ...(this.token && { authorization: `Bearer ${this.token}` }),
        ...(body !== undefined && { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body !== undefined && { body: textOf(body) }),
      ...(signal && { signal }),
    });
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
    rmSync(this.token === undefined ? this.root : this.parent, { recursive: true, force: true });
  }
}

/** `size`: on a disk of its own that is no larger. */
export function temporaryData(size?: string): string {
  const root = mkdtempSync(`${tmpdir()}/forkd-daemon-`);
  if (size) mountDisk(root, size);
  return dataDirectory(root);
}

/** Not in memory: where that is full, even what was never written to a file cannot be read. */
function mountDisk(root: string, size: string): void {
  const image = `${root}.img`;
  execFileSync('truncate', ['-s', size, image]);
  execFileSync('mkfs.ext4', ['-q', '-m', '0', '-O', '^has_journal', image]);
  execFileSync('mount', ['-o', 'loop', image, root]);
  // It stays until it is unmounted.
  rmSync(image);
}

/** With the images of the checkout, and what is known of the host: proving that again would take seconds each time. */
function dataDirectory(root: string): string {
  mkdirSync(root, { recursive: true });
  for (const name of ['images', 'probe']) {
    mkdirSync(`${SHARED}/${name}`, { recursive: true });
    symlinkSync(`${SHARED}/${name}`, `${root}/${name}`);
  }
  return root;
}

function textOf(body: unknown): string {
  return typeof body === 'string' ? body : JSON.stringify(body);
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

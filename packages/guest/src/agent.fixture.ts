import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { connectGuest, type GuestClient } from './index.js';

const NATIVE = new URL('../../../native/', import.meta.url);
const PLACES = [
  'target/x86_64-unknown-linux-gnu/release/forkd-agent',
  'target/release/forkd-agent',
  'dist/forkd-agent',
];

/** The real agent, run as an ordinary process on this machine. */
export class AgentFixture {
  private constructor(
    readonly directory: string,
    readonly process: ChildProcess,
    readonly socketPath: string,
    private readonly clients: GuestClient[],
  ) {}

  static async start(): Promise<AgentFixture> {
    const binary = PLACES.map((place) => fileURLToPath(new URL(place, NATIVE))).find((path) => existsSync(path));
    if (!binary) throw new Error('build the agent first: cargo build --release -p forkd-agent');
    const directory = await mkdtemp(join(tmpdir(), 'forkd-guest-'));
    const socketPath = join(directory, 'agent.sock');
    const child = spawn(binary, ['--listen', `unix:${socketPath}`], { stdio: ['ignore', 'inherit', 'inherit'] });
    while (!(await accepts(socketPath))) {
      if (child.exitCode !== null) throw new Error(`the agent ended with ${child.exitCode}`);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    return new AgentFixture(directory, child, socketPath, []);
  }

  async socket(): Promise<Socket> {
    const socket = connect(this.socketPath);
    await once(socket, 'connect');
    return socket;
  }

  async client(): Promise<GuestClient> {
    const client = connectGuest(await this.socket());
    this.clients.push(client);
    return client;
  }

  async stop(): Promise<void> {
    for (const client of this.clients) client.close();
    if (this.process.exitCode === null && this.process.signalCode === null) {
      this.process.kill('SIGTERM');
      await once(this.process, 'exit');
    }
    await rm(this.directory, { recursive: true, force: true });
  }
}

/** A socket is there a moment before somebody listens on it. */
function accepts(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path);
    socket.once('error', () => resolve(false));
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
  });
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

export async function until(condition: () => boolean | Promise<boolean>, limitMs = 5_000): Promise<void> {
  const deadline = Date.now() + limitMs;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error('the condition never held');
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

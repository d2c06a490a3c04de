import { type ChildProcess, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { all } from './all.js';
import { Forkd } from './forkd.js';

const REPOSITORY = fileURLToPath(new URL('../../..', import.meta.url));
const MAIN = `${REPOSITORY}/packages/daemon/dist/main.js`;

export interface TestDaemon {
  url: string;
  token: string;
  data: string;
  stop(): Promise<void>;
}

/** A data directory of its own that shares the images all tests boot from. */
export function testData(): string {
  const images = resolve(process.env.FORKD_DATA ?? `${REPOSITORY}/.forkd`, 'images');
  const data = mkdtempSync(`${tmpdir()}/forkd-client-`);
  mkdirSync(images, { recursive: true });
  symlinkSync(images, `${data}/images`);
  return data;
}

/** A real daemon on a free port. */
export async function startTestDaemon(): Promise<TestDaemon> {
  const data = testData();
  const token = 'a-token-that-is-long-enough';
  writeFileSync(`${data}/token`, `${token}\n`, { mode: 0o600 });
  const args = [MAIN, '--bind', '127.0.0.1:0', '--data', data, '--token-file', `${data}/token`];
  const daemon = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const url = await listening(daemon);
  const stop = async (): Promise<void> => {
    // Sandboxes outlive their daemon.
    using client = new Forkd({ url, token });
    for (const { id } of await all(client.sandboxes.list())) await client.sandboxes.kill(id);
    const ended = new Promise((done) => daemon.once('exit', done));
    daemon.kill('SIGTERM');
    await ended;
    rmSync(data, { recursive: true });
  };
  return { url, token, data, stop };
}

function listening(daemon: ChildProcess): Promise<string> {
  return new Promise((found, failed) => {
    daemon.once('exit', () => failed(new Error('the daemon ended')));
    daemon.stdout!.on('data', (chunk: Buffer) => {
      const address = /http:\/\/127\.0\.0\.1:\d+/.exec(chunk.toString());
      if (address) found(address[0]);
    });
  });
}

import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { resolve } from 'node:path';
import { inParallel, leaks } from '@forkd/controller';
import type { SandboxInfo } from '@forkd/protocol';
import { RestClient } from './rest-client.js';
import { RECIPES } from './session.js';
import { DaemonProcess } from './torture/daemon-process.js';

export const KILL_WIDTH = 8;

/**
 * Runs one program against a real daemon on a data directory of its own, which shares only the images. Whatever happens (an
 * error, Ctrl-C, kill) every VM, directory and socket is gone afterwards; an error ends the process with one message.
 */
export async function withDaemon(program: (rest: RestClient) => Promise<void>): Promise<void> {
  const interrupted = new Promise<never>((_, reject) => {
    const stop = (): void => reject(new Error('interrupted; everything was cleaned up'));
    process.on('SIGINT', stop).on('SIGTERM', stop).on('SIGHUP', stop);
  });
  const data = sharedData('daemon-');
  const daemon = new DaemonProcess(data, RECIPES);
  try {
    await daemon.start();
    using rest = new RestClient(daemon.url);
    try {
      await Promise.race([program(rest), interrupted]);
    } finally {
      await takeDown(rest, daemon, data);
    }
  } catch (error) {
    console.error(`\nerror: ${(error as Error).message}`);
    process.exitCode = 1;
  } finally {
    rmSync(data, { recursive: true, force: true });
  }
}

export async function killAll(rest: RestClient): Promise<void> {
  const running = await rest.call<SandboxInfo[]>('GET', '/v1/sandboxes');
  await inParallel(running.length, KILL_WIDTH, (index) => rest.call('DELETE', `/v1/sandboxes/${running[index]!.id}`));
}

/** Sandboxes outlive a daemon, so they are ended first, by whatever means is left. */
export async function takeDown(rest: RestClient, daemon: DaemonProcess, data: string): Promise<void> {
  await killAll(rest).catch(() => {});
  await daemon.stop();
  for (const pid of leaks(`${data}/run/daemon`).processes)
    try {
      process.kill(pid, 'SIGKILL');
    } catch {
      // Gone already.
    }
}

/** A folder of its own that shares the images and what is known of the host. */
export function sharedData(prefix: string): string {
  const shared = resolve(process.env.FORKD_DATA ?? '.forkd');
  mkdirSync(shared, { recursive: true });
  const data = mkdtempSync(`${shared}/${prefix}`);
  for (const name of ['images', 'probe']) {
    mkdirSync(`${shared}/${name}`, { recursive: true });
    symlinkSync(`${shared}/${name}`, `${data}/${name}`);
  }
  return data;
}

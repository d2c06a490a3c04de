import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { QemuEngine, qemuFiles } from '@forkd/engine-qemu';
import { HostHelper } from '@forkd/host';
import { loadRecipe, type Recipe } from '@forkd/images';
import { afterAll, expect } from 'vitest';
import { Controller } from './controller.js';
import { leaks, NO_LEAKS } from './leaks.js';
import type { NetworkOptions } from './network/networks.js';
import { runs } from './processes.js';

const REPOSITORY = new URL('../../..', import.meta.url).pathname;
const PROGRAM = fileURLToPath(new URL('../dist/program.fixture.js', import.meta.url));
/** Of the checkout, used by every test and by the demo. */
const SHARED = resolve(process.env.FORKD_DATA ?? `${REPOSITORY}/.forkd`);

/** A data directory of its own on top of the shared images and what is known of the host; afterwards nothing of it may be left running. */
export function dataDirectory(): string {
  const root = mkdtempSync(`${tmpdir()}/forkd-test-`);
  for (const name of ['images', 'probe']) {
    mkdirSync(`${SHARED}/${name}`, { recursive: true });
    symlinkSync(`${SHARED}/${name}`, `${root}/${name}`);
  }
  afterAll(async () => {
    // What was killed may still be ending.
    await until(() => leaks(root).processes.length === 0, 2_000).catch(() => {});
    expect(leaks(root)).toEqual(NO_LEAKS);
    rmSync(root, { recursive: true, force: true });
  });
  return root;
}

/** A controller as a program would have it; `lasting` as the daemon would. */
export async function openController(
  root: string,
  lasting = false,
  network: NetworkOptions = {},
): Promise<Controller & { helper: HostHelper }> {
  const { files } = await qemuFiles('qemu-system-x86_64');
  const reach = { within: [root, `${root}/images`], read: files };
  const helper = HostHelper.start(lasting ? `${root}/run/daemon` : '', reach);
  const opening = Controller.open(root, new QemuEngine({ helper }), helper, { lasting, network });
  opening.catch(() => helper[Symbol.asyncDispose]());
  const controller = await opening;
  return Object.assign(controller, { helper });
}

/** Another program on the same data directory, with three children. */
export async function startProgram(
  root: string,
  tag: string,
  lasting = false,
): Promise<{ child: ChildProcess; born: { id: string; pid: number }[] }> {
  const args = [PROGRAM, root, tag, ...(lasting ? ['lasting'] : [])];
  const child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  const [line] = await once(createInterface(child.stdout), 'line');
  const born: { id: string; pid: number }[] = JSON.parse(line);
  for (const { pid } of born) expect(runs(pid)).toBe(true);
  return { child, born };
}

export async function close(controller: Controller & { helper: HostHelper }): Promise<void> {
  await controller[Symbol.asyncDispose]();
  await controller.helper[Symbol.asyncDispose]();
}

export function recipe(name = 'python-numpy', changes: Partial<Recipe> = {}): Promise<Recipe> {
  return loadRecipe(name, `${REPOSITORY}/recipes`).then((loaded) => ({ ...loaded, ...changes }));
}

/** Names of what the controller has open for VMs at this moment. */
export function running(controller: Controller): string[] {
  return readdirSync(controller.data.own).filter((name) => !name.startsWith('zygote-'));
}

/** A guest without a language kernel: it is up in a few seconds. */
export function plainRecipe(changes: Partial<Recipe> = {}): Promise<Recipe> {
  const limits = { timeout_secs: 60 };
  return recipe('python-numpy', { memory_mib: 128, disk_mib: 64, warmup: limits, ready: limits, ...changes });
}

/** Everything the helper of a controller has running. */
export function vmms({ helper }: { helper: HostHelper }): number[] {
  const children = readFileSync(`/proc/${helper.pid}/task/${helper.pid}/children`, 'utf8');
  return children.split(' ').filter(Boolean).map(Number);
}

export async function until(condition: () => boolean, withinMs: number): Promise<void> {
  for (const deadline = Date.now() + withinMs; !condition(); ) {
    if (Date.now() > deadline) throw new Error(`not within ${withinMs} ms: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

import { mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { resolve } from 'node:path';
import { QemuEngine } from '@forkd/engine-qemu';
import { HostHelper } from '@forkd/host';
import { loadRecipe, type Recipe } from '@forkd/images';
import { afterAll, expect } from 'vitest';
import { Controller } from './controller.js';
import { leaks } from './leaks.js';

const REPOSITORY = new URL('../../..', import.meta.url).pathname;
/** Built once per checkout, used by every test and by the demo. */
const IMAGES = resolve(process.env.FORKD_DATA ?? `${REPOSITORY}/.forkd`, 'images');

/** A data directory of its own on top of the shared images; afterwards nothing of it may be left running. */
export function dataDirectory(): string {
  const root = mkdtempSync(`${tmpdir()}/forkd-test-`);
  mkdirSync(IMAGES, { recursive: true });
  symlinkSync(IMAGES, `${root}/images`);
  afterAll(() => {
    expect(leaks(root)).toEqual({ processes: [], mounts: [], run: [] });
    rmSync(root, { recursive: true, force: true });
  });
  return root;
}

/** A controller as a program would have it. */
export async function openController(root: string): Promise<Controller & { helper: HostHelper }> {
  const helper = HostHelper.start();
  const controller = await Controller.open(root, new QemuEngine({ helper }), helper);
  return Object.assign(controller, { helper });
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

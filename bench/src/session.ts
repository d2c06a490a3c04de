import { existsSync } from 'node:fs';
import { basename, dirname, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Controller, type NetworkOptions } from '@forkd/controller';
import { QemuEngine } from '@forkd/engine-qemu';
import { HostHelper, nativeBinary } from '@forkd/host';
import { buildInitramfs, buildKernel, loadRecipe, type Recipe } from '@forkd/images';
import { asForkdError, ForkdError } from '@forkd/protocol';
import { type Arguments, readArguments } from './arguments.js';
import type { Progress } from './progress-line.js';
import { showProgress } from './progress-line.js';

export const RECIPES = fileURLToPath(new URL('../../recipes', import.meta.url));

export interface Session {
  args: Arguments;
  recipe: Recipe;
  /** What the recipe is called in titles and file names. */
  name: string;
  controller: Controller;
  helper: HostHelper;
  signal: AbortSignal;
}

/** What is around the VMs, if not the usual. */
export interface Walls extends NetworkOptions {
  jail?: 'none';
}

/**
 * Runs one program against a controller of its own. Whatever happens (an error, Ctrl-C, kill) every VM, directory and socket
 * is gone afterwards; an error ends the process with one message and a hint.
 */
export async function inSession(
  program: (session: Session) => Promise<void>,
  { jail, ...network }: Walls = {},
): Promise<void> {
  const stop = new AbortController();
  const cancel = (): void =>
    stop.abort(new ForkdError('cancelled', 'interrupted', { hint: 'Everything was cleaned up.' }));
  process.on('SIGINT', cancel).on('SIGTERM', cancel).on('SIGHUP', cancel);
  // Whoever reads along may stop doing so.
  process.stdout.on('error', cancel);
  process.stderr.on('error', cancel);
  try {
    const args = readArguments();
    const recipe = await loadRecipe(args.recipe, RECIPES);
    if (process.getuid?.() !== 0) throw new ForkdError('not_permitted', 'forkd needs root to start VMs');
    await using helper = HostHelper.start();
    const data = process.env.FORKD_DATA ?? '.forkd';
    const images = `${data}/images`;
    const kernel = await buildKernel({ store: images, onProgress: showProgress, signal: stop.signal });
    const agent = nativeBinary('forkd-agent');
    const initramfsOptions = { store: images, onProgress: showProgress, signal: stop.signal };
    const { path: initramfs } = await buildInitramfs(kernel, agent, initramfsOptions);
    const proof = { kernel: kernel.path, initramfs };
    const engine = new QemuEngine({ helper, cache: `${data}/probe`, proof, ...(jail && { jail }) });
    await using controller = await Controller.open(data, engine, helper, { network });
    await program({ args, recipe, name: recipeName(args.recipe), controller, helper, signal: stop.signal });
    stop.signal.throwIfAborted();
  } catch (thrown) {
    const error = asForkdError(stop.signal.aborted ? stop.signal.reason : thrown);
    console.error(`\nerror: ${error.message}\nhint: ${error.hint}`);
    if (error.code === 'internal' && error.cause instanceof Error) console.error(error.cause.stack);
    process.exitCode = error.code === 'cancelled' ? 130 : 1;
  }
}

export interface Warmed {
  tag: string;
  recipe: Recipe;
  /** The line every child evaluates, and in which language. */
  language: 'python' | 'node';
  code: string;
  warmMs: number;
}

const LINES = { python: 'numpy.zeros(5).tolist()', node: 'new Array(5).fill(0)' };

/** A snapshot is named after the run that made it, and lives as long as that. */
const TAG = 'bench-';

/** Removes what runs that were killed have left. */
async function removeAbandoned(controller: Controller): Promise<void> {
  const runs = dirname(controller.data.own);
  for (const { tag } of await controller.snapshots())
    if (tag.startsWith(TAG) && !existsSync(`${runs}/${tag.slice(TAG.length)}`)) await controller.removeSnapshot(tag);
}

function recipeName(nameOrPath: string): string {
  return /[/.]/.test(nameOrPath) ? basename(dirname(resolve(nameOrPath))) : nameOrPath;
}

/** Boots and warms a parent under a tag of its own, for as long as `use` runs. */
export async function withParent(
  { args: { accel }, recipe, name, controller, signal }: Session,
  use: (warmed: Warmed) => Promise<void>,
): Promise<void> {
  const language = recipe.warmup.kernel;
  if (!language) throw new ForkdError('recipe_invalid', `recipe ${name} warms no language kernel to evaluate in`);
  await removeAbandoned(controller);
  const tag = `${TAG}${basename(controller.data.own)}`;
  let warmMs = 0;
  let since = performance.now();
  const onProgress = (progress: Progress): void => {
    if (progress.step === 'boot') since = performance.now();
    if (progress.step === 'save') warmMs = performance.now() - since;
    showProgress(progress);
  };
  await controller.createSnapshot({ tag, recipe, recipeName: name, accel, onProgress, signal });
  try {
    await use({ tag, recipe, language, code: recipe.ready.eval ?? LINES[language], warmMs });
  } finally {
    await Promise.all(controller.sandboxes().map((sandbox) => sandbox.kill()));
    await controller.removeSnapshot(tag);
  }
}

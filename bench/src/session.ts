import { fileURLToPath } from 'node:url';
import { Controller } from '@forkd/controller';
import { QemuEngine } from '@forkd/engine-qemu';
import { HostHelper, nativeBinary } from '@forkd/host';
import { buildInitramfs, buildKernel, loadRecipe, type Recipe } from '@forkd/images';
import { asForkdError, ForkdError } from '@forkd/protocol';
import type { Progress } from './progress-line.js';
import { showProgress } from './progress-line.js';

export const RECIPES = fileURLToPath(new URL('../../recipes', import.meta.url));

export interface Session {
  controller: Controller;
  helper: HostHelper;
  signal: AbortSignal;
}

/**
 * Runs one program against a controller of its own. Whatever happens (an error, Ctrl-C, kill) every VM, directory and socket
 * is gone afterwards; an error ends the process with one message and a hint.
 */
export async function inSession(program: (session: Session) => Promise<void>): Promise<void> {
  const stop = new AbortController();
  const cancel = (): void =>
    stop.abort(new ForkdError('cancelled', 'interrupted', { hint: 'Everything was cleaned up.' }));
  process.on('SIGINT', cancel).on('SIGTERM', cancel).on('SIGHUP', cancel);
  try {
    if (process.getuid?.() !== 0) throw new ForkdError('not_permitted', 'forkd needs root to start VMs');
    await using helper = HostHelper.start();
    const data = process.env.FORKD_DATA ?? '.forkd';
    const images = `${data}/images`;
    const kernel = await buildKernel({ store: images, onProgress: showProgress, signal: stop.signal });
    const agent = nativeBinary('forkd-agent');
    const { path: initramfs } = await buildInitramfs(kernel, agent, { store: images, onProgress: showProgress });
    const engine = new QemuEngine({ helper, cache: `${data}/probe`, proof: { kernel: kernel.path, initramfs } });
    await using controller = await Controller.open(data, engine, helper);
    await program({ controller, helper, signal: stop.signal });
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

/** Boots and warms a parent under a tag of its own, for as long as `use` runs. */
export async function withParent(
  { controller, signal }: Session,
  name: string,
  accel: 'auto' | 'kvm' | 'tcg',
  use: (warmed: Warmed) => Promise<void>,
): Promise<void> {
  const recipe = await loadRecipe(name, RECIPES);
  const language = recipe.warmup.kernel;
  if (!language) throw new ForkdError('recipe_invalid', `recipe ${name} warms no language kernel to evaluate in`);
  const tag = `bench-${process.pid}`;
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
    for (const sandbox of controller.sandboxes()) await sandbox.kill();
    await controller.removeSnapshot(tag);
  }
}

import { once } from 'node:events';
import type { GuestClient } from '@forkd/guest';
import type { Recipe } from '@forkd/images';
import { asForkdError, ForkdError } from '@forkd/protocol';
import type { Report } from './progress.js';

/** How often a guest that is not ready yet is asked again. */
const RETRY_MS = 100;

const NO_ANSWER = 'its check did not end';

/** Does what the recipe says to the running guest; throws `warmup_failed` with the guest's own output. */
export async function warmUp(guest: GuestClient, recipe: Recipe, report: Report, signal: AbortSignal): Promise<void> {
  const { kernel, code, command, timeout_secs } = recipe.warmup;
  const limits = { timeoutMs: timeout_secs * 1000, signal };
  if (kernel) {
    report({ step: 'warm-up', detail: `starting the ${kernel} kernel` });
    await guest.startKernel(kernel, limits);
  }
  if (kernel && code) {
    report({ step: 'warm-up', detail: firstLine(code) });
    const { error, stderr } = await guest.eval({ language: kernel, code, ...limits });
    if (error) throw failed('code', error.traceback || `${error.name}: ${error.value}`, stderr);
  }
  if (command) {
    report({ step: 'warm-up', detail: firstLine(command) });
    const done = await guest.exec({ command, env: recipe.env, ...limits });
    if (done.timedOut) throw failed('command', `it did not end within ${timeout_secs} s`, done.stderr);
    if (done.signal) throw failed('command', `ended by ${done.signal}`, done.stderr);
    if (done.exitCode !== 0) throw failed('command', `exit code ${done.exitCode}`, done.stderr);
  }
}

/** Asks until everything under `[ready]` holds, or throws `timeout` with the last answer. */
export async function untilReady(
  guest: GuestClient,
  recipe: Recipe,
  report: Report,
  signal: AbortSignal,
): Promise<void> {
  const deadline = Date.now() + recipe.ready.timeout_secs * 1000;
  report({ step: 'ready', detail: 'asking the guest' });
  for (let missing = ''; ; ) {
    // Zero would mean no limit.
    const answer = await notReady(guest, recipe, Math.max(1, deadline - Date.now()), signal);
    if (answer === undefined) return;
    // The last time is cut short: then the answer before it says more.
    if (missing === '' || answer !== NO_ANSWER) missing = answer;
    if (Date.now() + RETRY_MS > deadline)
      throw new ForkdError('timeout', `the guest was not ready within ${recipe.ready.timeout_secs} s: ${missing}`, {
        hint: 'Raise ready.timeout_secs in the recipe, or see why its check does not pass.',
      });
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    signal.throwIfAborted();
  }
}

/** What keeps the guest from being ready; `undefined` when nothing does. */
async function notReady(
  guest: GuestClient,
  { warmup, ready }: Recipe,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<string | undefined> {
  const limits = { timeoutMs, signal };
  try {
    if (ready.eval && warmup.kernel) {
      const { error } = await guest.eval({ language: warmup.kernel, code: ready.eval, ...limits });
      if (error) return `${error.name}: ${error.value}`;
    }
    if (ready.command) {
      const { exitCode, signal: killed, timedOut, stderr } = await guest.exec({ command: ready.command, ...limits });
      if (timedOut) return NO_ANSWER;
      if (exitCode !== 0) return `the command ended with ${exitCode ?? killed} ${stderr.slice(-500)}`.trimEnd();
    }
    if (ready.port) {
      const stream = await guest.connect(ready.port, limits);
      stream.on('error', () => {});
      stream.destroy();
      await once(stream, 'close').catch(() => {});
    }
    return undefined;
  } catch (thrown) {
    const error = asForkdError(thrown);
    if (error.code !== 'guest_error' && error.code !== 'timeout') throw error;
    return error.code === 'timeout' ? NO_ANSWER : error.message;
  }
}

function failed(what: string, reason: string, output: string | Buffer): ForkdError {
  return new ForkdError('warmup_failed', `the warm-up ${what} failed: ${`${reason}\n${output}`.trim().slice(-4000)}`);
}

function firstLine(text: string): string {
  return text.trim().split('\n')[0]!.slice(0, 60);
}

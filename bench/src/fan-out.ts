import type { Sandbox, SpawnResult } from '@forkd/controller';
import { ForkdError } from '@forkd/protocol';
import { showBar } from './progress-line.js';
import type { Session, Warmed } from './session.js';

/** One child's life up to its first answer, in ms since the spawn was asked for. */
export interface Sample {
  id: string;
  started: number;
  restored: number;
  ready: number;
  answered: number;
}

export interface FanOut {
  samples: Sample[];
  sandboxes: Sandbox[];
  failures: ForkdError[];
  /** Until the last child was ready, and until the last one had answered. */
  spawnMs: number;
  wallMs: number;
}

/** Spawns n children and has each evaluate the same line as soon as it is ready. */
export async function fanOut(
  { controller, signal }: Session,
  warmed: Warmed,
  n: number,
  width: number,
): Promise<FanOut> {
  const { tag, language, code } = warmed;
  const start = performance.now();
  const samples: Sample[] = [];
  const answers: Promise<void>[] = [];
  const failures: ForkdError[] = [];
  const onReady = (sandbox: Sandbox): void => {
    const { started, restored, ready } = sandbox.timeline!;
    const answer = sandbox.guest.eval({ language, code, signal }).then(({ result, error }) => {
      if (error || result === null)
        throw new ForkdError('guest_error', `${sandbox.id}: ${error?.value ?? 'no result'}`);
      const times = { started: started - start, restored: restored - start, ready: ready - start };
      samples.push({ id: sandbox.id, ...times, answered: performance.now() - start });
      showBar('children', samples.length, n);
    });
    answers.push(answer.catch((error: ForkdError) => void failures.push(error)));
  };
  const results = await controller.spawn({ tag, n, onReady, signal, ...(width > 0 ? { width } : {}) });
  const spawnMs = performance.now() - start;
  await Promise.all(answers);
  const wallMs = performance.now() - start;
  signal.throwIfAborted();
  for (const result of results) if (!result.ok) failures.push(result.error);
  return { samples, sandboxes: results.filter(isOk).map(({ sandbox }) => sandbox), failures, spawnMs, wallMs };
}

function isOk(result: SpawnResult): result is Extract<SpawnResult, { ok: true }> {
  return result.ok;
}

import type { GuestClient } from '@forkd/guest';
import type { Recipe } from '@forkd/images';
import { asForkdError } from '@forkd/protocol';
import type { Report } from './progress.js';

const NUMPY = 'try:\n    import numpy\nexcept ImportError:\n    pass';

/** For a root disk that nobody described: warms Python where it is installed, and numpy in it. */
export async function findLanguage(
  guest: GuestClient,
  recipe: Recipe,
  report: Report,
  signal: AbortSignal,
): Promise<Recipe> {
  report({ step: 'warm-up', detail: 'looking for Python' });
  const limits = { timeoutMs: recipe.warmup.timeout_secs * 1000, signal };
  try {
    await guest.startKernel('python', limits);
  } catch (thrown) {
    const error = asForkdError(thrown);
    if (error.code !== 'guest_error') throw error;
    return recipe;
  }
  return {
    ...recipe,
    warmup: { ...recipe.warmup, kernel: 'python', code: NUMPY },
    ready: { ...recipe.ready, eval: '1 + 1' },
  };
}

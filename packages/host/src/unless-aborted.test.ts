import { setImmediate as turn } from 'node:timers/promises';
import { expect, it, onTestFinished } from 'vitest';
import { unlessAborted } from './unless-aborted.js';

it.each([true, false])(
  'work that fails after it was given up disturbs nobody (given up before: %s)',
  async (before) => {
    const unhandled: unknown[] = [];
    const note = (reason: unknown): void => void unhandled.push(reason);
    process.on('unhandledRejection', note);
    onTestFinished(() => void process.off('unhandledRejection', note));
    const stop = new AbortController();
    let fail = (_: Error): void => {};
    const work = new Promise<never>((_, reject) => (fail = reject));
    if (before) stop.abort(new Error('enough'));
    const waiting = unlessAborted(stop.signal, work);
    if (!before) stop.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
    fail(new Error('too late'));
    await turn();
    await turn();
    expect(unhandled).toEqual([]);
  },
);

import { setTimeout as sleep } from 'node:timers/promises';
import type { Sandbox } from '@forkd/sdk';
import { command, option, toggle } from '../command.js';
import { ms } from '../units.js';
import { count } from '../values.js';
import { SPAWN, TAG } from './flags.js';
import { spawnRequest } from './spawn-request.js';

export const fork = command({
  name: 'fork',
  group: 'sandboxes',
  summary: 'Start sandboxes, show how long it took, and end them again',
  flags: {
    ...TAG,
    n: option('COUNT', count(1, 1000), 'How many', { short: 'n', fallback: 1 }),
    'settle-secs': option('SECS', count(0, 86_400), 'How long they live', { fallback: 2 }),
    keep: toggle('Do not end them'),
    ...SPAWN,
  },
  async run(context, { flags }) {
    const { output, signal } = context;
    const daemon = await context.daemon();
    const sandboxes: Sandbox[] = [];
    const errors: unknown[] = [];
    try {
      const begin = performance.now();
      const request = { ...spawnRequest(flags), snapshot_tag: flags.tag, n: flags.n, signal };
      for (const result of await daemon.sandboxes.spawnSettled(request))
        if ('sandbox' in result) sandboxes.push(result.sandbox);
        else errors.push(result.error);
      const wall = performance.now() - begin;
      output.progress(`${sandboxes.length} of ${flags.n} started, looking again in ${flags['settle-secs']} s`);
      await sleep(flags['settle-secs'] * 1000, undefined, { signal });
      const alive = (await Promise.allSettled(sandboxes.map((sandbox) => sandbox.ping({ signal })))).filter(
        ({ status }) => status === 'fulfilled',
      ).length;
      output.endProgress();
      const report = {
        ...{ tag: flags.tag, n: flags.n, spawned: sandboxes.length, alive, kept: flags.keep },
        ...{ wall_ms: round(wall), per_child_ms: round(wall / flags.n) },
        ...{ sandboxes: sandboxes.map(({ id }) => id), errors },
      };
      await output.result(report, () =>
        output.table(
          ['WHAT', 'VALUE'],
          [
            ['total wall clock', ms(wall)],
            ['per child', ms(wall / flags.n)],
            ['started', `${sandboxes.length} of ${flags.n}`],
            ['alive', `${alive} of ${flags.n}`],
          ],
        ),
      );
      return alive === flags.n ? 0 : 1;
    } finally {
      // Not with the signal: who stops this does not want to keep them.
      if (!flags.keep) await Promise.allSettled(sandboxes.map((sandbox) => sandbox.kill()));
    }
  },
});

function round(value: number): number {
  return Number(value.toFixed(1));
}

import { setTimeout as sleep } from 'node:timers/promises';
import type { Sandbox } from '@forkd/sdk';
import { command, option, toggle } from '../command.js';
import type { Context } from '../context.js';
import { ms } from '../units.js';
import { usage } from '../usage.js';
import { count, sandboxId, tag } from '../values.js';
import { SPAWN } from './flags.js';
import { spawnRequest } from './spawn-request.js';

export const fork = command({
  name: 'fork',
  group: 'sandboxes',
  summary: 'Fork a running sandbox; or start sandboxes, show how long it took, and end them again',
  flags: {
    tag: option('TAG', tag, 'Snapshot; with --from-sandbox a name for the one in between', { complete: 'tags' }),
    'from-sandbox': option('ID', sandboxId, 'Children of this sandbox as it is now; they stay', {
      complete: 'sandboxes',
    }),
    n: option('COUNT', count(1, 1000), 'How many', { short: 'n', fallback: 1 }),
    'settle-secs': option('SECS', count(0, 86_400), 'How long they live', { fallback: 2 }),
    keep: toggle('Do not end them'),
    ...SPAWN,
  },
  examples: ['forkd fork --from-sandbox ID -n 3', 'forkd fork --tag numpy -n 100'],
  async run(context, { flags }) {
    const { output, signal } = context;
    const { n } = flags;
    if (flags['from-sandbox'] !== undefined)
      return forkSandbox(context, flags['from-sandbox'], {
        n,
        ...spawnRequest(flags),
        ...(flags.tag !== undefined && { tag: flags.tag }),
      });
    if (flags.tag === undefined)
      throw usage('say what to fork', 'Give --tag TAG (see `forkd images`), or --from-sandbox ID (see `forkd ls`).');
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

type Request = { n: number; tag?: string } & ReturnType<typeof spawnRequest>;

async function forkSandbox({ output, signal, daemon }: Context, id: string, request: Request): Promise<number> {
  // Every sandbox can be forked, so that forkd's switches for those that could are not part of this route.
  const { per_child_netns, live_fork, hugepages, prewarm, ...body } = request;
  const source = await (await daemon()).sandboxes.get(id, { signal });
  const { snapshot, children } = await source.fork({ ...body, signal });
  const results = children.map((child) => ('sandbox' in child ? { sandbox: child.sandbox.info } : child));
  await output.result({ snapshot, results }, () =>
    children
      .map((child) => ('sandbox' in child ? output.good(child.sandbox.id) : output.bad(child.error.error)))
      .join('\n'),
  );
  return children.every((child) => 'sandbox' in child) ? 0 : 1;
}

function round(value: number): number {
  return Number(value.toFixed(1));
}

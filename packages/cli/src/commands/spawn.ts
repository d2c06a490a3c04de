import type { MaxForks } from '@forkd/protocol';
import { command, option } from '../command.js';
import { count } from '../values.js';
import { SPAWN, TAG } from './flags.js';
import { spawnRequest } from './spawn-request.js';

export const spawn = command({
  name: 'spawn',
  group: 'sandboxes',
  summary: 'Start sandboxes from a snapshot',
  flags: {
    ...TAG,
    n: option('COUNT', count(1, 1000), 'How many', { short: 'n', fallback: 1 }),
    ...SPAWN,
    'max-forks': option('COUNT', count(0, 1_000_000), 'Sandboxes that may be forked from each at one time'),
    'max-fork-depth': option('N', count(0, 1_000), 'Generations that may be forked from each'),
    'max-fork-mib': option('MIB', count(0, 1 << 30), 'Disk that all branches of each may take'),
  },
  examples: ['forkd spawn --tag numpy -n 3', 'id=$(forkd spawn --tag numpy --json | jq -r .[0].id)'],
  async run(context, { flags }) {
    const { output, signal } = context;
    const max_forks = maxForks(flags['max-forks'], flags['max-fork-depth'], flags['max-fork-mib']);
    const request = { ...spawnRequest(flags), ...max_forks, snapshot_tag: flags.tag, n: flags.n, signal };
    const sandboxes = await (await context.daemon()).sandboxes.spawn(request);
    await output.result(
      sandboxes.map(({ info }) => info),
      () => sandboxes.map(({ id }) => output.good(id)).join('\n'),
    );
  },
});

function maxForks(count?: number, depth?: number, mib?: number): { max_forks?: MaxForks } {
  if (count === undefined && depth === undefined && mib === undefined) return {};
  return { max_forks: { count, depth, bytes: mib === undefined ? undefined : mib * (1 << 20) } };
}

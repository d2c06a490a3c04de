import { command, option } from '../command.js';
import { count } from '../values.js';
import { SPAWN, TAG } from './flags.js';
import { spawnRequest } from './spawn-request.js';

export const spawn = command({
  name: 'spawn',
  group: 'sandboxes',
  summary: 'Start sandboxes from a snapshot',
  flags: { ...TAG, n: option('COUNT', count(1, 1000), 'How many', { short: 'n', fallback: 1 }), ...SPAWN },
  examples: ['forkd spawn --tag numpy -n 3', 'id=$(forkd spawn --tag numpy --json | jq -r .[0].id)'],
  async run(context, { flags }) {
    const { output, signal } = context;
    const request = { ...spawnRequest(flags), snapshot_tag: flags.tag, n: flags.n, signal };
    const sandboxes = await (await context.daemon()).sandboxes.spawn(request);
    await output.result(
      sandboxes.map(({ info }) => info),
      () => sandboxes.map(({ id }) => output.good(id)).join('\n'),
    );
  },
});

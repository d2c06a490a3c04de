import { all } from '@forkd/sdk';
import { command, option, toggle } from '../command.js';
import { usage } from '../usage.js';
import { sandboxId, tag } from '../values.js';
import { each } from './each.js';

export const kill = command({
  name: 'kill',
  group: 'sandboxes',
  summary: 'End sandboxes',
  operands: [{ name: 'ID', isOptional: true, isMany: true, complete: 'sandboxes' }],
  flags: {
    all: toggle('All of them'),
    tag: option('TAG', tag, 'All of this snapshot', { complete: 'tags' }),
  },
  async run(context, { flags, operands }) {
    const ways = [operands.length > 0, flags.all, flags.tag !== undefined].filter((way) => way).length;
    if (ways !== 1) throw usage('give ids, or --all, or --tag TAG, and only one of these');
    const ids = operands.map(sandboxId);
    const { sandboxes } = await context.daemon();
    const { signal } = context;
    const found =
      ids.length > 0 ? ids : (await all(sandboxes.list({ snapshot_tag: flags.tag, signal }))).map(({ id }) => id);
    return each(context, 'id', found, (id) => sandboxes.kill(id, { signal }));
  },
});

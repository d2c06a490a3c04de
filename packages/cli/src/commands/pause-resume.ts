import { command } from '../command.js';
import { sandboxId } from '../values.js';
import { each } from './each.js';

export const pause = command({
  name: 'pause',
  group: 'sandboxes',
  summary: 'Stop the CPUs of sandboxes; they keep their memory',
  operands: [{ name: 'ID', isMany: true, complete: 'sandboxes' }],
  flags: {},
  async run(context, { operands }) {
    const ids = operands.map(sandboxId);
    const { sandboxes } = await context.daemon();
    const { signal } = context;
    return each(context, 'id', ids, async (id) => (await sandboxes.get(id, { signal })).pause({ signal }));
  },
});

export const resume = command({
  name: 'resume',
  group: 'sandboxes',
  summary: 'Let paused sandboxes go on',
  operands: [{ name: 'ID', isMany: true, complete: 'sandboxes' }],
  flags: {},
  async run(context, { operands }) {
    const ids = operands.map(sandboxId);
    const { sandboxes } = await context.daemon();
    const { signal } = context;
    return each(context, 'id', ids, async (id) => (await sandboxes.get(id, { signal })).resume({ signal }));
  },
});

import { command } from '../command.js';
import { sandboxId } from '../values.js';
import { each } from './each.js';

export const pause = turning('pause', 'Stop the CPUs of sandboxes; they keep their memory');
export const resume = turning('resume', 'Let paused sandboxes go on');

function turning(name: 'pause' | 'resume', summary: string) {
  return command({
    name,
    group: 'sandboxes',
    summary,
    operands: [{ name: 'ID', isMany: true, complete: 'sandboxes' }],
    flags: {},
    async run(context, { operands }) {
      const ids = operands.map(sandboxId);
      const { sandboxes } = await context.daemon();
      const { signal } = context;
      return each(context, 'id', ids, async (id) => (await sandboxes.get(id, { signal }))[name]({ signal }));
    },
  });
}

import { command } from '../command.js';
import { sandboxId } from '../values.js';

export const promote = command({
  name: 'promote',
  group: 'sandboxes',
  summary: 'Give a child the id of the sandbox it was forked from, which ends',
  operands: [{ name: 'ID', complete: 'sandboxes' }],
  flags: {},
  async run(context, { operands: [id = ''] }) {
    const { signal, output } = context;
    const child = await (await context.daemon()).sandboxes.get(sandboxId(id), { signal });
    const { info } = await child.promote({ signal });
    await output.result(info, () => output.good(`${id} is ${info.id} now`));
  },
});

import { command, option } from '../command.js';
import { sandboxId, tag } from '../values.js';

export const rollback = command({
  name: 'rollback',
  group: 'sandboxes',
  summary: 'Take a sandbox back to a snapshot it came from, or that was taken of it',
  operands: [{ name: 'ID', complete: 'sandboxes' }],
  flags: { to: option('TAG', tag, 'The snapshot', { isRequired: true, complete: 'tags' }) },
  async run(context, { flags, operands: [id = ''] }) {
    const { signal, output } = context;
    const sandbox = await (await context.daemon()).sandboxes.get(sandboxId(id), { signal });
    const info = await sandbox.rollback(flags.to, { signal });
    await output.result(info, () => output.good(`${info.id} is at ${info.snapshot_tag} again`));
  },
});

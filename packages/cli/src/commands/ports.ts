import { command } from '../command.js';
import { CHILD } from './flags.js';
import { pickSandbox } from './pick-sandbox.js';

export const ports = command({
  name: 'ports',
  group: 'sandboxes',
  summary: 'List the TCP ports that programs in a sandbox listen on',
  operands: [{ name: 'ID', isOptional: true, complete: 'sandboxes' }],
  flags: CHILD,
  async run(context, { flags: { child }, operands }) {
    const { output, signal } = context;
    const { id } = pickSandbox(child, operands);
    const found = await (await (await context.daemon()).sandboxes.get(id, { signal })).ports({ signal });
    const rows = found.map(({ port, address, pid, process }) => [port, address, pid, process]);
    await output.result(found, () => output.table(['PORT', 'ADDRESS', 'PID', 'PROCESS'], rows));
  },
});

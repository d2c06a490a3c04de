import { command } from '../command.js';
import { sandboxId } from '../values.js';

export const serialConsole = command({
  name: 'console',
  group: 'sandboxes',
  summary: 'Show the most recent output of the serial console of a sandbox',
  operands: [{ name: 'ID', complete: 'sandboxes' }],
  flags: {},
  async run(context, { operands: [name = ''] }) {
    const id = sandboxId(name);
    const { output, signal } = context;
    const text = await (await (await context.daemon()).sandboxes.get(id, { signal })).console({ signal });
    await output.result({ id, console: text }, () => (process.stdout.isTTY ? harmless(text) : text).trimEnd());
  },
});

/** What a guest prints at boot must not steer the terminal of whoever reads it. */
function harmless(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what must not get through.
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, '');
}

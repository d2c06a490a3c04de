import type { Sandbox } from '@forkd/sdk';
import { command, option } from '../command.js';
import type { Context } from '../context.js';
import { joinTerminal } from '../terminal.js';
import { text } from '../values.js';
import { CHILD } from './flags.js';
import { pickSandbox } from './pick-sandbox.js';

export const shell = command({
  name: 'shell',
  group: 'start',
  summary: 'A terminal in a sandbox; Enter ~ . leaves one that is stuck',
  operands: [{ name: 'ID', isOptional: true, complete: 'sandboxes' }],
  flags: {
    ...CHILD,
    command: option('LINE', text, 'Run this instead of an interactive shell', { short: 'c' }),
    cwd: option('DIR', text, 'Folder to begin in'),
    user: option('NAME', text, 'User to be'),
  },
  async run(context, { flags: { child, ...flags }, operands }) {
    const { id } = pickSandbox(child, operands);
    const sandbox = await (await context.daemon()).sandboxes.get(id, { signal: context.signal });
    const { command: line, cwd, user } = flags;
    return openShell(context, sandbox, { command: line, cwd, user });
  },
});

export async function openShell(
  context: Context,
  sandbox: Sandbox,
  options: { command?: string | undefined; cwd?: string | undefined; user?: string | undefined } = {},
): Promise<number> {
  if (process.stdin.isTTY) context.output.say('(leave with exit, or with Enter ~ . if it is stuck)');
  // Some terminals do not know their size.
  const [cols, rows] = [process.stdout.columns || 80, process.stdout.rows || 24];
  const term = /^[A-Za-z0-9._+-]{1,64}$/.test(context.env.TERM ?? '') ? context.env.TERM : undefined;
  const pty = await sandbox.pty({ ...options, cols, rows, term, signal: context.signal });
  return joinTerminal(context, pty);
}

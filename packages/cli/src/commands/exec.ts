import { command, options, toggle } from '../command.js';
import { usage } from '../usage.js';
import { pair } from '../values.js';
import { CHILD, PROGRAM } from './flags.js';
import { pickSandbox } from './pick-sandbox.js';
import { pipedInput, programOptions, runProgram } from './run-program.js';

export const exec = command({
  name: 'exec',
  group: 'sandboxes',
  summary: 'Run a program in a sandbox and exit with its code',
  operands: [
    { name: 'ID', isOptional: true, complete: 'sandboxes' },
    { name: 'CMD', isOptional: true, isMany: true },
  ],
  rest: 'CMD',
  flags: {
    ...CHILD,
    ...PROGRAM,
    env: options('NAME=VALUE', pair, 'Variable of the environment of the program', { short: 'e' }),
    'no-stdin': toggle('Do not read standard input'),
  },
  examples: ['forkd exec sb-0123456789abcdefghij -- ls -la /', 'echo 1+1 | forkd exec ID -- python3 -'],
  async run(context, { flags, operands, rest }) {
    const { id, left } = pickSandbox(flags.child, operands);
    const args = [...left, ...rest];
    if (args.length === 0) throw usage('the program to run is missing', 'For example: forkd exec ID -- uname -a');
    const daemon = await context.daemon();
    const sandbox = await daemon.sandboxes.get(id, { signal: context.signal });
    const stdin = flags['no-stdin'] ? undefined : await pipedInput(context);
    return runProgram(context, sandbox, args, { ...programOptions(flags, stdin), env: Object.fromEntries(flags.env) });
  },
});

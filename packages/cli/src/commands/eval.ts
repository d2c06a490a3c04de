import { command, option } from '../command.js';
import { usage } from '../usage.js';
import { count, oneOf } from '../values.js';
import { CHILD } from './flags.js';
import { pickSandbox } from './pick-sandbox.js';
import { pipedInput } from './run-program.js';

const CODE_LIMIT = 1 << 20;

export const evaluate = command({
  name: 'eval',
  group: 'sandboxes',
  summary: 'Evaluate code in the warmed interpreter of a sandbox',
  operands: [
    { name: 'ID', isOptional: true, complete: 'sandboxes' },
    { name: 'CODE', isOptional: true, isMany: true },
  ],
  rest: 'CODE',
  flags: {
    ...CHILD,
    language: option('NAME', oneOf('python', 'node'), 'Which interpreter; else the one the snapshot was warmed in'),
    'timeout-secs': option('SECS', count(1, 86_400), 'Time the code may take', { fallback: 30 }),
  },
  examples: ["forkd eval ID -- 'numpy.zeros(5).tolist()'", 'forkd eval ID - < script.py'],
  async run(context, { flags, operands, rest }) {
    const { id, left } = pickSandbox(flags.child, operands);
    const words = [...left, ...rest];
    const code = words.length === 1 && words[0] === '-' ? await pipedInput(context, CODE_LIMIT) : words.join(' ');
    if (!code) throw usage('the code is missing', "For example: forkd eval ID -- '1 + 1'");
    const { output, signal } = context;
    const sandbox = await (await context.daemon()).sandboxes.get(id, { signal });
    const { language, 'timeout-secs': timeout_secs } = flags;
    const answer = await sandbox.eval(code, { timeout_secs, signal, ...(language !== undefined && { language }) });
    if (output.isJson) await output.result(answer, () => '');
    else {
      await output.write('stdout', answer.stdout);
      await output.write('stderr', answer.stderr);
      if (answer.error !== null) output.say(answer.error.trimEnd());
      else if (answer.result !== null) await output.print(answer.result);
    }
    return answer.exit_code === 0 ? 0 : 1;
  },
});

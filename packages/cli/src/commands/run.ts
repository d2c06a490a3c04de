import { command, option, options, toggle } from '../command.js';
import { usage } from '../usage.js';
import { pair, tag } from '../values.js';
import { PROGRAM, RECIPE } from './flags.js';
import { pipedInput, programOptions, runProgram } from './run-program.js';
import { haveSnapshot } from './snapshot.js';

export const run = command({
  name: 'run',
  group: 'start',
  summary: 'Run a program in a new sandbox that ends with it',
  operands: [{ name: 'CMD', isOptional: true, isMany: true }],
  rest: 'CMD',
  flags: {
    recipe: RECIPE,
    tag: option('TAG', tag, 'Snapshot; with --recipe, where the snapshot is kept', { complete: 'tags' }),
    env: options('NAME=VALUE', pair, 'Variable of the environment of the program', { short: 'e' }),
    'no-stdin': toggle('Do not read standard input'),
    ...PROGRAM,
  },
  examples: ["forkd run --recipe python-numpy -- python3 -c 'import numpy; print(numpy.pi)'"],
  async run(context, { flags, operands, rest }) {
    const { signal } = context;
    const args = [...operands, ...rest];
    if (args.length === 0) throw usage('the program to run is missing', 'For example: forkd run --tag TAG -- uname -a');
    if (flags.recipe === undefined && flags.tag === undefined) throw usage('give --recipe NAME or --tag TAG');
    const daemon = await context.daemon();
    const name = flags.tag ?? `run-${flags.recipe}`.slice(0, 64);
    if (flags.recipe !== undefined) await haveSnapshot(context, daemon, name, flags.recipe);
    const stdin = flags['no-stdin'] ? undefined : await pipedInput(context);
    await using sandbox = (await daemon.sandboxes.spawn({ snapshot_tag: name, signal }))[0]!;
    const request = { ...programOptions(flags, stdin), env: Object.fromEntries(flags.env) };
    return await runProgram(context, sandbox, args, request);
  },
});

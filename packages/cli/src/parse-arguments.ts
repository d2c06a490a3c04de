import { type ParseArgsConfig, parseArgs } from 'node:util';
import type { Command, Flags, Input } from './command.js';
import { option, toggle } from './command.js';
import { usage } from './usage.js';
import { text } from './values.js';

/** Every verb takes these. */
export const COMMON = {
  json: toggle('Print the result as JSON'),
  'daemon-url': option('URL', text, 'Where the daemon is', { env: 'FORKD_URL' }),
  'daemon-token': option('TOKEN', text, 'Token for the daemon; better given by the environment', {
    env: 'FORKD_TOKEN',
  }),
  help: toggle('Show this help', { short: 'h' }),
} as const satisfies Flags;

export type Parsed = Input<Flags> & { common: Input<typeof COMMON>['flags'] };

/** Reads the arguments of one verb as its row of the table says. */
export function parseArguments(command: Command, argv: readonly string[], env: NodeJS.ProcessEnv): Parsed {
  if (command.isPassThrough)
    return {
      ...{ flags: {}, operands: [...argv], rest: [] },
      common: { json: false, help: false, 'daemon-url': undefined, 'daemon-token': undefined },
    };
  const split = argv.indexOf('--');
  const own = split < 0 ? [...argv] : argv.slice(0, split);
  const rest = split < 0 ? [] : argv.slice(split + 1);
  const flags: Flags = { ...COMMON, ...command.flags };
  const { values, positionals } = readFlags(command, flags, own);
  const read = Object.fromEntries(
    Object.entries(flags).map(([name, flag]) => [
      name,
      finalValue(name, flag, values[name], env, values.help === true),
    ]),
  ) as Parsed['flags'];
  if (values.help !== true) checkOperands(command, positionals, rest);
  return { flags: read, operands: positionals, rest, common: read as Parsed['common'] };
}

/** Whether a line has a flag, also one that cannot be parsed: help and the form of errors come before all checks. */
export function hasFlag(argv: readonly string[], ...spellings: string[]): boolean {
  const split = argv.indexOf('--');
  return (split < 0 ? argv : argv.slice(0, split)).some((word) => spellings.includes(word));
}

type Given = string | boolean | (string | boolean)[] | undefined;

function readFlags(command: Command, flags: Flags, args: string[]) {
  const config: ParseArgsConfig['options'] = {};
  for (const [name, { placeholder, short, isMany }] of Object.entries(flags))
    config[name] = {
      type: placeholder === undefined ? 'boolean' : 'string',
      multiple: isMany === true,
      ...(short !== undefined && { short }),
    };
  try {
    const { values, positionals } = parseArgs({ args, options: config, allowPositionals: true });
    return { values: values as Record<string, Given>, positionals };
  } catch (cause) {
    const message = (cause as Error).message.split('. ')[0]!;
    const before = command.rest === undefined ? '' : ` Arguments of ${command.rest} go after \`--\`.`;
    throw usage(
      message.replace(/^Unknown option/, 'unknown flag').replace(/^./, (first) => first.toLowerCase()),
      `See \`forkd ${command.name} --help\`.${before}`,
    );
  }
}

function finalValue(name: string, flag: Flags[string], given: Given, env: NodeJS.ProcessEnv, isHelp: boolean): unknown {
  const found = given ?? (flag.env === undefined ? undefined : env[flag.env] || undefined);
  if (found === undefined) {
    if (flag.isRequired && !isHelp) throw usage(`--${name} ${flag.placeholder} is missing`);
    return flag.fallback;
  }
  const one = (value: string | boolean): unknown => (typeof value === 'boolean' ? value : readValue(name, flag, value));
  return Array.isArray(found) ? found.map(one) : one(found);
}

function readValue(name: string, flag: Flags[string], value: string): unknown {
  try {
    return flag.read(value);
  } catch (error) {
    throw usage(`--${name}: ${(error as Error).message}`, (error as { hint?: string }).hint);
  }
}

function checkOperands({ name, operands = [], rest: restName }: Command, given: string[], rest: string[]): void {
  const see = `See \`forkd ${name} --help\`.`;
  const needed = operands.filter(({ isOptional }) => !isOptional);
  if (given.length < needed.length) throw usage(`${needed[given.length]!.name} is missing`, see);
  if (given.length > operands.length && !operands.at(-1)?.isMany)
    throw usage(`unexpected argument ${JSON.stringify(given[operands.length]!.slice(0, 100))}`, see);
  if (rest.length > 0 && restName === undefined) throw usage('nothing is expected after --', see);
}

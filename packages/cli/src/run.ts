import { asForkdError } from '@forkd/protocol';
import type { Forkd } from '@forkd/sdk';
import { closest } from './closest.js';
import type { Command } from './command.js';
import { connect, runningDaemon } from './connect.js';
import type { Context } from './context.js';
import { EXIT_CODES } from './exit-codes.js';
import { helpOf, overview } from './help.js';
import { Output } from './output.js';
import { hasFlag, parseArguments } from './parse-arguments.js';
import { usage } from './usage.js';
import { quoted } from './values.js';

export interface Surroundings {
  stdout: NodeJS.WriteStream;
  stderr: NodeJS.WriteStream;
  env: NodeJS.ProcessEnv;
  /** Its reason is the exit code. */
  signal: AbortSignal;
}

/** Runs one command line and gives its exit code. */
export async function run(
  commands: readonly Command[],
  argv: readonly string[],
  around: Surroundings,
): Promise<number> {
  const { stdout, stderr, env, signal } = around;
  // What cannot be parsed may still have asked for errors as JSON.
  let output = new Output({ stdout, stderr, env, isJson: hasFlag(argv, '--json') });
  const clients = new Set<Forkd>();
  try {
    const [command, args] = find(commands, argv);
    if (command === undefined || (!command.isPassThrough && hasFlag(args, '--help', '-h'))) {
      await output.write('stdout', `${command ? helpOf(command) : overview(commands)}\n`);
      return 0;
    }
    const input = parseArguments(command, args, env);
    output = new Output({ stdout, stderr, env, isJson: input.common.json });
    const { 'daemon-url': url, 'daemon-token': token } = input.common;
    const options = { url, token, env, signal, say: (line: string) => output.say(line) };
    const keep = <T extends Forkd | undefined>(client: T): T => {
      if (client) clients.add(client);
      return client;
    };
    const context: Context = {
      output,
      signal,
      env,
      url,
      daemon: async () => keep(await connect(options)),
      runningDaemon: async () => keep(await runningDaemon(options)),
    };
    return (await command.run(context, input)) ?? 0;
  } catch (thrown) {
    if (signal.aborted) return Number(signal.reason);
    const error = asForkdError(thrown);
    output.error(error);
    return EXIT_CODES[error.code];
  } finally {
    output.endProgress();
    for (const client of clients) client.close();
  }
}

/** The command of a line and the arguments after its name; none where help is asked for in general. */
function find(commands: readonly Command[], argv: readonly string[]): [Command | undefined, readonly string[]] {
  const [first, second] = argv;
  if (first === undefined) throw usage('a command is missing', 'See `forkd help`.');
  if (first === 'help') return argv.length > 1 ? find(commands, [...argv.slice(1), '--help']) : [undefined, []];
  if (first === '--help' || first === '-h') return [undefined, []];
  const named = (name: string): Command | undefined => commands.find((command) => command.name === name);
  if (first === '--version' || first === '-V') return [named('version'), argv.slice(1)];
  const two = named(`${first} ${second}`);
  if (two) return [two, argv.slice(2)];
  const one = named(first);
  if (one) return [one, argv.slice(1)];
  const family = commands.filter(({ name }) => name.startsWith(`${first} `)).map(({ name }) => name);
  if (family.length > 0) {
    if (second === '--help' || second === '-h') return [undefined, []];
    throw usage(`${first} what?`, `One of: ${family.join(', ')}.`);
  }
  const like = closest(
    first,
    commands.map(({ name }) => name),
  );
  throw usage(`unknown command ${quoted(first)}`, like ? `Did you mean \`forkd ${like}\`?` : 'See `forkd help`.');
}

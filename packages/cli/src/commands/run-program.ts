import { fstatSync } from 'node:fs';
import { ForkdError } from '@forkd/protocol';
import type { ExecOptions, Sandbox } from '@forkd/sdk';
import type { Context } from '../context.js';
import { usage } from '../usage.js';

const STDIN_LIMIT = 8 << 20;
const STDIN_PATIENCE_MS = 2_000;

export interface ProgramFlags {
  'timeout-secs': number;
  cwd: string | undefined;
  user: string | undefined;
}

/** Runs a program in a sandbox, its output as it comes, and gives its exit code. */
export async function runProgram(
  { output, signal }: Context,
  sandbox: Sandbox,
  args: readonly string[],
  options: ExecOptions,
): Promise<number> {
  if (output.isJson) {
    const done = await sandbox.exec(args, { ...options, signal });
    await output.result(done, () => '');
    return done.timed_out ? 124 : done.exit_code;
  }
  for await (const event of sandbox.execStream(args, { ...options, signal })) {
    if (event.type !== 'exit') await output.write(event.type, event.data);
    else if (event.timed_out) {
      output.say(
        `error: the program took longer than ${options.timeout_secs} s\nhint: Give it more with --timeout-secs.`,
      );
      return 124;
    } else return event.exit_code;
  }
  return 1;
}

export function programOptions(flags: ProgramFlags, stdin: string | undefined): ExecOptions {
  const { cwd, user, 'timeout-secs': timeout_secs } = flags;
  return {
    timeout_secs,
    ...(cwd !== undefined && { cwd }),
    ...(user !== undefined && { user }),
    ...(stdin !== undefined && { stdin }),
  };
}

/** Standard input, where it is a pipe or a file; a terminal belongs to `forkd shell`. */
export async function pipedInput({ output, signal }: Context, limit = STDIN_LIMIT): Promise<string | undefined> {
  if (!isPiped()) return undefined;
  const note = setTimeout(
    () => output.say('reading standard input (use < /dev/null, or --no-stdin, if there is none)'),
    STDIN_PATIENCE_MS,
  );
  const chunks: Buffer[] = [];
  let size = 0;
  const stop = (): void => void process.stdin.destroy();
  signal.addEventListener('abort', stop, { once: true });
  try {
    for await (const chunk of process.stdin as AsyncIterable<Buffer>) {
      size += chunk.length;
      if (size > limit)
        throw new ForkdError('too_large', `standard input is larger than ${limit >> 20} MiB`, {
          hint: 'Copy it into the sandbox first: forkd cp - ID:/path',
        });
      chunks.push(chunk);
    }
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(Buffer.concat(chunks));
  } catch (error) {
    if (error instanceof TypeError)
      throw usage('standard input is not text', 'Copy it into the sandbox first: forkd cp - ID:/path');
    throw error;
  } finally {
    clearTimeout(note);
    signal.removeEventListener('abort', stop);
  }
}

function isPiped(): boolean {
  try {
    const stat = fstatSync(0);
    return stat.isFIFO() || stat.isFile() || stat.isSocket();
  } catch {
    return false;
  }
}

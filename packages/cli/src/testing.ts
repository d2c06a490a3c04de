import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const FORKD = fileURLToPath(new URL('../../../bin/forkd', import.meta.url));

export interface Ran {
  code: number | null;
  stdout: string;
  stderr: string;
}

export interface Around {
  env?: NodeJS.ProcessEnv;
  input?: string;
}

/** Starts the real program. Only what a test says is in its environment. */
export function startForkd(
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
  options: SpawnOptions = {},
): ChildProcess {
  const { PATH } = process.env;
  return spawn(FORKD, args, { stdio: 'pipe', ...options, env: { PATH, FORKD_DATA: '/nonexistent/forkd', ...env } });
}

export async function forkd(args: readonly string[], { env, input }: Around = {}): Promise<Ran> {
  const stdin = input === undefined ? 'ignore' : 'pipe';
  const child = startForkd(args, env, { stdio: [stdin, 'pipe', 'pipe'] });
  child.stdin?.end(input);
  return finished(child);
}

export async function finished(child: ChildProcess): Promise<Ran> {
  let [stdout, stderr] = ['', ''];
  child.stdout?.setEncoding('utf8').on('data', (text: string) => {
    stdout += text;
  });
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve));
  return { code, stdout, stderr };
}

import { spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { ForkdError } from '@forkd/protocol';
import { needTools, type Tool, toolPath } from './tools.js';

const KEPT_STDERR = 64 * 1024;
const KEPT_STDOUT = 1024 * 1024;

export interface RunOptions {
  signal?: AbortSignal | undefined;
  tools?: string | undefined;
  cwd?: string;
  /** Where the tool puts temporary files: in a directory of the builder they cannot outlive it. */
  scratch?: string;
  /** Standard output goes to this file; otherwise it is returned. */
  output?: string;
  /** Own mount and pid namespace: whatever the tool mounts or starts ends with it, even when it is killed. */
  sealed?: boolean;
  onLine?: (line: string) => void;
}

/** Runs one tool to its end and returns its standard output. No shell is involved, so no argument needs quoting. */
export async function run(tool: Tool, args: string[], options: RunOptions = {}): Promise<string> {
  const { signal } = options;
  if (signal?.aborted) throw cancelled(tool);
  const path = toolPath(options.tools);
  needTools([tool, 'setpriv', ...(options.sealed ? (['unshare'] as const) : [])], path);

  const seal = options.sealed ? ['unshare', '--mount', '--pid', '--fork', '--kill-child'] : [];
  const output = options.output === undefined ? undefined : openSync(options.output, 'wx', 0o644);
  try {
    return await new Promise<string>((resolve, reject) => {
      // A builder that is killed with -9 cannot clean up: the kernel then ends the tool through its death signal.
      const child = spawn('setpriv', ['--pdeathsig', 'KILL', ...seal, tool, ...args], {
        cwd: options.cwd,
        env: environment(path, options.scratch),
        stdio: ['ignore', output ?? 'pipe', 'pipe'],
        detached: true,
      });
      let stdout = '';
      let stderr = '';
      let line = '';
      child.stdout?.setEncoding('utf8').on('data', (text: string) => {
        stdout = (stdout + text).slice(0, KEPT_STDOUT);
      });
      child.stderr?.setEncoding('utf8').on('data', (text: string) => {
        stderr = (stderr + text).slice(-KEPT_STDERR);
        if (!options.onLine) return;
        const lines = (line + text).split(/[\r\n]+/);
        line = (lines.pop() ?? '').slice(-KEPT_STDERR);
        for (const whole of lines) options.onLine(whole);
      });

      const abort = () => {
        if (child.pid === undefined) return;
        try {
          process.kill(-child.pid, 'SIGKILL');
        } catch {
          // It ended by itself between the two events.
        }
      };
      signal?.addEventListener('abort', abort, { once: true });
      child.on('error', (cause) => reject(new ForkdError('host_unfit', `cannot start ${tool}`, { cause })));
      // 'close' comes after the last process that holds the pipes: the directory can then be removed safely.
      child.on('close', (code, ended) => {
        signal?.removeEventListener('abort', abort);
        if (signal?.aborted) reject(cancelled(tool));
        else if (code === 0) resolve(stdout);
        else reject(failed(tool, args, code === null ? `was ended by ${ended}` : `exited with ${code}`, stderr));
      });
    });
  } finally {
    if (output !== undefined) closeSync(output);
  }
}

/** Scripts of packages run in this environment: the daemon's own settings and tokens are none of their business. */
function environment(path: string, scratch = process.env.TMPDIR): NodeJS.ProcessEnv {
  const passedOn = Object.entries(process.env).filter(([name]) => /^(HOME|.*_proxy)$/i.test(name));
  return {
    ...Object.fromEntries(passedOn),
    ...(scratch === undefined ? {} : { TMPDIR: scratch }),
    PATH: path,
    LC_ALL: 'C.UTF-8',
    DEBIAN_FRONTEND: 'noninteractive',
  };
}

function cancelled(tool: Tool): ForkdError {
  return new ForkdError('cancelled', `cancelled while running ${tool}`);
}

function failed(tool: Tool, args: string[], how: string, stderr: string): ForkdError {
  const details = { command: [tool, ...args].join(' '), stderr };
  if (/No space left on device|Disk quota exceeded/.test(stderr))
    return new ForkdError('disk_full', `the disk is full (while running ${tool})`, { details });
  const said = stderr.trim().split('\n').slice(-3).join('; ');
  return new ForkdError('host_unfit', `${tool} ${how}${said === '' ? '' : `: ${said}`}`, {
    hint: `Run it by hand to see more: ${details.command}`,
    details,
  });
}

import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { ForkdError } from '@forkd/protocol';
import { command } from '../command.js';
import type { Context } from '../context.js';
import { DOCTOR, daemonSocket, dataDirectory } from '../installed.js';
import { clean } from '../output.js';

export interface Report {
  checks: { name: string; status: 'pass' | 'warn' | 'fail' | 'skip'; detail: string; hint?: string | null }[];
  pass: number;
  warn: number;
  fail: number;
  skip: number;
}

const GLYPHS = { pass: ['green', '✓'], warn: ['yellow', '!'], fail: ['red', '✗'], skip: ['dim', '-'] } as const;

export const doctor = command({
  name: 'doctor',
  group: 'start',
  summary: 'Check whether this host can run forkd, and say what to do where not',
  flags: {},
  async run(context) {
    const report = await examine(context);
    await context.output.result(report, () => reportText(context, report));
    return report.fail > 0 ? 1 : 0;
  },
});

/** Runs the checks; they live with the daemon, which is what has to work. */
export async function examine({ output, signal, env, url }: Context): Promise<Report> {
  if (!existsSync(DOCTOR))
    throw new ForkdError('host_unfit', 'the checks are not built', {
      hint: 'Run `make build` in the folder of forkd.',
    });
  output.progress('checking this host');
  const socket = daemonSocket(env);
  const place = url !== undefined ? ['--daemon-url', url] : existsSync(socket) ? ['--socket', socket] : [];
  const args = ['--data', dataDirectory(env), ...place];
  const child = spawn(process.execPath, [DOCTOR, '--json', ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env,
    signal,
  });
  let text = '';
  child.stdout.setEncoding('utf8').on('data', (piece: string) => {
    text += piece;
  });
  await new Promise((resolve, reject) => child.once('close', resolve).once('error', reject));
  output.endProgress();
  try {
    return JSON.parse(text) as Report;
  } catch (cause) {
    throw new ForkdError('host_unfit', 'the checks did not come to an end', {
      cause,
      hint: 'Its own words are above.',
    });
  }
}

export function reportText({ output }: Context, { checks, pass, warn, fail, skip }: Report): string {
  const width = Math.max(...checks.map(({ name }) => name.length));
  const lines = checks.flatMap(({ name, status, detail, hint }) => {
    const [colour, glyph] = GLYPHS[status];
    const line = `${output.paint(colour, glyph)} ${clean(name).padEnd(width)}  ${clean(detail)}`;
    return hint && status !== 'pass' ? [line, `  ${' '.repeat(width)}  hint: ${clean(hint)}`] : [line];
  });
  return [...lines, `pass=${pass} warn=${warn} fail=${fail} skip=${skip}`].join('\n');
}

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

/** What a program says, or why it says nothing. */
export type Said = { ok: true; output: string } | { ok: false; absent: boolean; reason: string };

/** Runs a program of the host, in its own words and with the directories of administrators in its path. */
export async function ask(program: string, args: string[], signal: AbortSignal): Promise<Said> {
  const env = { PATH: `${process.env.PATH ?? ''}:/usr/sbin:/sbin`, LC_ALL: 'C' };
  try {
    const { stdout, stderr } = await promisify(execFile)(program, args, { env, signal, maxBuffer: 1 << 20 });
    return { ok: true, output: (stdout || stderr).trim() };
  } catch (thrown) {
    const { code, stderr, message } = thrown as { code?: unknown; stderr?: string; message: string };
    const said = (stderr || message).trim().split('\n')[0]!.slice(0, 200);
    return { ok: false, absent: code === 'ENOENT', reason: said };
  }
}

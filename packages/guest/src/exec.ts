import type { Readable } from 'node:stream';
import { type Exit, GuestProcess, type StartOptions } from './process.js';
import { TextCollector } from './text-collector.js';
import type { Transport } from './transport.js';

export interface ExecOptions extends Omit<StartOptions, 'stdin' | 'pty'> {
  stdin?: string | Uint8Array | Readable | undefined;
  /** What is kept of stdout and stderr together; the rest is dropped and `truncated` says so. */
  maxOutputBytes?: number | undefined;
}

export interface ExecResult extends Exit {
  stdout: string;
  stderr: string;
  truncated: boolean;
}

/** Runs a process to its end and collects what it prints. */
export async function exec(
  transport: Transport,
  { stdin, maxOutputBytes, ...options }: ExecOptions,
): Promise<ExecResult> {
  const process = await GuestProcess.start(transport, { ...options, stdin: stdin !== undefined });
  const fed = stdin === undefined ? undefined : feed(process, stdin);
  const output = new TextCollector(maxOutputBytes);
  for await (const { type, data } of process) output.add(type, data);
  await fed;
  return { ...(await process.wait()), ...output.finish() };
}

/** Gives a process all of its standard input. */
export async function feed(process: GuestProcess, stdin: string | Uint8Array | Readable): Promise<void> {
  try {
    if (typeof stdin === 'string' || stdin instanceof Uint8Array) await process.write(stdin);
    else for await (const chunk of stdin) await process.write(chunk);
    await process.closeStdin();
  } catch {
    // A process may end, or close its stdin, before it has read everything. How it ended is the answer.
  }
}

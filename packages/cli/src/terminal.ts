import type { Pty } from '@forkd/sdk';
import type { Context } from './context.js';
import { Escape } from './escape.js';

const END_OF_INPUT = '\u0004';

/** Joins the terminal of this program with one in a sandbox until its shell ends; gives the shell's exit code. */
export async function joinTerminal({ output, signal }: Context, pty: Pty): Promise<number> {
  const { stdin, stdout } = process;
  const isTerminal = stdin.isTTY === true;
  const wayOut = new Escape();
  let hasLeft = false;
  const type = (data: Buffer): void => {
    const { send, isLeaving } = isTerminal ? wayOut.feed(data) : { send: data, isLeaving: false };
    if (send.length > 0) pty.write(send);
    if (!isLeaving) return;
    hasLeft = true;
    pty.close();
  };
  const end = (): void => pty.write(END_OF_INPUT);
  const resize = (): void => pty.resize(stdout.columns || 80, stdout.rows || 24);
  const restore = (): void => {
    if (isTerminal) stdin.setRawMode(false);
  };
  // Also where nobody gets to the end of this function: a terminal left raw is of no use to its owner.
  process.once('exit', restore);
  if (isTerminal) stdin.setRawMode(true);
  // Who asked a question before has left it paused.
  stdin.on('data', type).once('end', end).resume();
  stdout.on('resize', resize);
  try {
    for await (const data of pty) await output.write('stdout', data);
    return (await pty.exit).exit_code;
  } catch (error) {
    if (!hasLeft || signal.aborted) throw error;
    output.say('\r\nleft the terminal; the sandbox goes on');
    return 0;
  } finally {
    stdin.off('data', type).off('end', end).pause();
    stdout.off('resize', resize);
    process.off('exit', restore);
    restore();
    pty.close();
  }
}

import type { IncomingMessage } from 'node:http';
import { ForkdError } from '@forkd/protocol';
import { unreachable } from './refusal.js';

const LINE_LIMIT = 16 << 20;

/** The lines of an answer as they come, without their ends. */
export async function* lines(response: IncomingMessage): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = '';
  try {
    for await (const chunk of response as AsyncIterable<Buffer>) {
      rest += decoder.decode(chunk, { stream: true });
      const whole = rest.split('\n');
      rest = whole.pop()!;
      if (rest.length > LINE_LIMIT) throw new ForkdError('too_large', 'a line of the answer is too long');
      for (const line of whole) yield line.endsWith('\r') ? line.slice(0, -1) : line;
    }
    if (rest !== '') yield rest;
  } catch (thrown) {
    throw unreachable(thrown as Error);
  } finally {
    response.destroy();
  }
}

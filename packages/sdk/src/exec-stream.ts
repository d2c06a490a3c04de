import type { IncomingMessage } from 'node:http';
import { ExecEvent, ExecResponse, ForkdError } from '@forkd/protocol';
import { lines } from './lines.js';
import { collect, knownCode } from './refusal.js';

export type ExecOutput = { type: 'stdout' | 'stderr'; data: Uint8Array };
export type ExecExit = Extract<ExecEvent, { type: 'exit' }>;

const REPLY_LIMIT = 64 << 20;

/** Output as it comes, then one exit. A daemon that does not stream answers all at once. */
export async function* execEvents(response: IncomingMessage): AsyncGenerator<ExecOutput | ExecExit> {
  if (!response.headers['content-type']?.startsWith('application/x-ndjson')) {
    const { stdout, stderr, exit_code, signal, timed_out } = ExecResponse.parse(
      JSON.parse(await collect(response, REPLY_LIMIT)),
    );
    if (stdout !== '') yield { type: 'stdout', data: Buffer.from(stdout) };
    if (stderr !== '') yield { type: 'stderr', data: Buffer.from(stderr) };
    yield { type: 'exit', exit_code, signal, timed_out };
    return;
  }
  for await (const line of lines(response)) {
    if (line === '') continue;
    const event = parseEvent(line);
    if (event.type === 'error') throw new ForkdError(knownCode(event.code), event.error, { hint: event.hint });
    if (event.type === 'exit') {
      yield event;
      return;
    }
    yield { type: event.type, data: Buffer.from(event.data, 'base64') };
  }
  throw new ForkdError('unreachable', 'the connection ended before the program did');
}

function parseEvent(line: string): ExecEvent {
  try {
    const parsed = ExecEvent.safeParse(JSON.parse(line));
    if (parsed.success) return parsed.data;
  } catch {
    // Falls through to the error below.
  }
  throw new ForkdError('internal', 'the daemon sent output this client does not understand');
}

import type { IncomingMessage } from 'node:http';
import { ForkdError } from '@forkd/protocol';
import { lines } from './lines.js';

export interface ServerSentEvent {
  id: string | undefined;
  name: string;
  data: string;
}

/** The events of an answer of type text/event-stream. */
export async function* serverSentEvents(response: IncomingMessage): AsyncGenerator<ServerSentEvent> {
  // A daemon that vanished without a word is noticed by the kernel, not by waiting for ever.
  response.socket.setKeepAlive(true, 30_000);
  let event: ServerSentEvent = { id: undefined, name: 'message', data: '' };
  for await (const line of lines(response)) {
    if (line === '') {
      if (event.data !== '') yield event;
      event = { id: undefined, name: 'message', data: '' };
      continue;
    }
    const [, field, value = ''] = /^([^:]*):? ?(.*)$/.exec(line)!;
    if (field === 'id') event.id = value;
    else if (field === 'event') event.name = value;
    else if (field === 'data') event.data += event.data === '' ? value : `\n${value}`;
  }
}

/** The data of an event that must be JSON of one shape. */
export function eventData<T>(
  schema: { safeParse(value: unknown): { success: true; data: T } | { success: false } },
  { name, data }: ServerSentEvent,
): T {
  try {
    const parsed = schema.safeParse(JSON.parse(data));
    if (parsed.success) return parsed.data;
  } catch {
    // Falls through to the error below.
  }
  throw new ForkdError('internal', `the daemon sent an event ${JSON.stringify(name)} this client does not understand`);
}

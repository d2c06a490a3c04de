import { setTimeout as sleep } from 'node:timers/promises';
import { ERRORS, type EventType, ForkdError, ForkdEvent } from '@forkd/protocol';
import type { Connection } from './connection.js';
import type { CallOptions } from './options.js';
import { eventData, serverSentEvents } from './server-sent-events.js';

export interface EventsOptions extends CallOptions {
  types?: readonly EventType[] | undefined;
  sandbox_id?: string | undefined;
  snapshot_tag?: string | undefined;
  /** Everything still remembered after this one; 0 for all. Without it, only what happens from now on. */
  since?: number | undefined;
}

const LONGEST_WAIT_MS = 5_000;

/** Events as they happen, until the caller stops. A lost connection is made again and goes on where it broke. */
export async function* followEvents(connection: Connection, options: EventsOptions = {}): AsyncGenerator<ForkdEvent> {
  const { types, sandbox_id, snapshot_tag, since, ...call } = options;
  const query = { types: types?.join(','), sandbox_id, snapshot_tag, since };
  let last: string | undefined;
  let isOpen = false;
  let failures = 0;
  for (;;) {
    try {
      const headers = last === undefined ? {} : { 'last-event-id': last };
      const response = await connection.open('events', { ...call, query, headers });
      isOpen = true;
      for await (const event of serverSentEvents(response)) {
        failures = 0;
        last = event.id ?? last;
        yield eventData(ForkdEvent, event);
      }
    } catch (error) {
      const passes = error instanceof ForkdError && ERRORS[error.code].retry === 'retry';
      if (!isOpen || !passes) throw error;
    }
    const wait = Math.min(LONGEST_WAIT_MS, 100 * 2 ** failures++);
    await sleep(wait, undefined, { signal: options.signal }).catch(() => {});
    if (options.signal?.aborted) throw new ForkdError('cancelled', 'the call was cancelled');
  }
}

import type { Controller } from '@forkd/controller';
import { ForkdError, type ForkdEvent, ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { serveRoute } from '../serve-route.js';
import { keptAlive, serverSentEvent, streamReply } from '../stream-reply.js';
import { mayTouch } from '../visible.js';

/** A client that takes events this much more slowly than they happen has to come back for the rest. */
const MOST_WAITING = 10_000;

export function eventRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.events, ({ query, request, reply, signal }) => {
    const { types, sandbox_id, snapshot_tag } = query;
    const wanted = (event: ForkdEvent): boolean =>
      mayTouch(request.caller, event) &&
      (types === undefined || types.includes(event.type)) &&
      (sandbox_id === undefined || event.sandbox_id === sandbox_id) &&
      (snapshot_tag === undefined || event.snapshot_tag === snapshot_tag);
    const since = query.since ?? lastSeen(request.headers['last-event-id']);
    return streamReply(reply, 'text/event-stream', keptAlive(told(controller, since, wanted, signal)));
  });
}

async function* told(
  { events }: Controller,
  since: number | undefined,
  wanted: (event: ForkdEvent) => boolean,
  signal: AbortSignal,
): AsyncGenerator<string> {
  const waiting: ForkdEvent[] = since === undefined ? [] : events.since(since);
  let wake = (): void => {};
  const stop = events.listen((event) => {
    waiting.push(event);
    wake();
  });
  const ended = new Promise<'ended'>((resolve) => {
    if (signal.aborted) resolve('ended');
    signal.addEventListener('abort', () => resolve('ended'), { once: true });
  });
  try {
    for (;;) {
      for (let event = waiting.shift(); event; event = waiting.shift())
        if (wanted(event)) yield serverSentEvent(event.type, event, event.seq);
      const more = new Promise<'more'>((resolve) => (wake = () => resolve('more')));
      if ((await Promise.race([more, ended])) === 'ended' || waiting.length > MOST_WAITING) return;
    }
  } finally {
    stop();
  }
}

function lastSeen(header: string | string[] | undefined): number | undefined {
  if (header === undefined) return undefined;
  const seen = Number(header);
  if (Number.isSafeInteger(seen) && seen >= 0) return seen;
  throw new ForkdError('invalid_request', 'Last-Event-ID: the id of an event of this daemon');
}

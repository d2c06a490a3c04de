import { Readable } from 'node:stream';
import { asForkdError, ForkdError } from '@forkd/protocol';
import type { FastifyReply } from 'fastify';
import { errorFields } from './error-replies.js';

/** A guest that has not begun by then is given up. */
const BEGIN_MS = 30_000;
/** Shorter than anything on the way waits before it takes silence for the end. */
const SILENCE_MS = 15_000;

/** Answers with text as it comes into being, and no faster than the client takes it. */
export function streamReply(reply: FastifyReply, type: string, parts: AsyncIterable<string>): FastifyReply {
  async function* flushed(): AsyncGenerator<string> {
    // The client shall know that it was accepted, also while there is nothing to say.
    reply.raw.flushHeaders();
    yield* parts;
  }
  // Kept for a next request, the connection would hold up a daemon that is stopping when the stream has ended.
  return reply.type(type).header('connection', 'close').send(Readable.from(flushed()));
}

/** One server-sent event. */
export function serverSentEvent(name: string, data: object, id?: number): string {
  // JSON has no line breaks outside of its strings, and escapes those inside.
  return `${id === undefined ? '' : `id: ${id}\n`}event: ${name.replace(/[^\w-]/g, '_')}\ndata: ${JSON.stringify(data)}\n\n`;
}

/** What a stream says last when it breaks after it has begun. */
export function streamError(thrown: unknown) {
  return { type: 'error' as const, ...errorFields(asForkdError(thrown)) };
}

/** Puts comments where server-sent events are far apart, so that nobody on the way hangs up. */
export async function* keptAlive(events: AsyncGenerator<string>): AsyncGenerator<string> {
  try {
    for (let next = events.next(); ; ) {
      const event = await withinSilence(next);
      if (event === undefined) {
        yield ': still here\n\n';
        continue;
      }
      if (event.done) return;
      yield event.value;
      next = events.next();
    }
  } finally {
    void events.return(undefined).catch(() => {});
  }
}

async function withinSilence<T>(next: Promise<T>): Promise<T | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const silence = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), SILENCE_MS);
  });
  return Promise.race([next, silence]).finally(() => clearTimeout(timer));
}

/** Waits until something that may then last for ever has begun; `giveUp` ends it if it does not begin in time. */
export async function begun<T>(what: string, starting: Promise<T>, giveUp: AbortController): Promise<T> {
  const late = new ForkdError('timeout', `${what}: the guest did not begin within ${BEGIN_MS / 1000} s`);
  const timer = setTimeout(() => giveUp.abort(late), BEGIN_MS);
  try {
    return await starting;
  } catch (thrown) {
    throw giveUp.signal.reason === late ? late : thrown;
  } finally {
    clearTimeout(timer);
  }
}

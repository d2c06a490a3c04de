import { createHash } from 'node:crypto';
import type { Store } from '@forkd/controller';
import { ForkdError } from '@forkd/protocol';
import type { FastifyInstance, FastifyRequest } from 'fastify';

const KEY = /^[\x21-\x7e]{1,200}$/;

/** How long an answer is kept for whoever asks again. */
const KEEP_SECS = 86_400;

interface Running {
  key: string;
  owner: string;
  done: Promise<void>;
  finish: () => void;
}

/** A repetition of a creating request with the same `Idempotency-Key` gets the answer of the first, and creates nothing. */
export function keepAnswers(app: FastifyInstance, store: Store): void {
  const running = new Map<string, Running>();
  const firsts = new WeakMap<FastifyRequest, Running>();
  const end = (request: FastifyRequest): void => {
    const first = firsts.get(request);
    if (!first) return;
    running.delete(`${first.owner} ${first.key}`);
    first.finish();
  };

  app.addHook('preHandler', async (request, reply) => {
    const key = keyOf(request);
    if (key === undefined) return;
    const owner = request.caller.name;
    // Whoever lost patience and asks again waits for the first answer.
    await running.get(`${owner} ${key}`)?.done;
    const now = Math.floor(Date.now() / 1000);
    store.forgetAnswers(now - KEEP_SECS);
    const empty = { status: null, body: null, created_at: now };
    const { fresh, answer } = store.keepAnswer({ key, owner, request_hash: hashOf(request), ...empty });
    if (answer.request_hash !== hashOf(request))
      throw new ForkdError('idempotency_conflict', 'this Idempotency-Key belongs to another request');
    if (!fresh && answer.status === null)
      throw new ForkdError('state_conflict', 'a request with this Idempotency-Key is being answered');
    if (!fresh)
      return reply
        .code(answer.status ?? 200)
        .header('idempotency-replayed', 'true')
        .type('application/json')
        .send(answer.body);
    let finish = (): void => {};
    const done = new Promise<void>((resolve) => (finish = resolve));
    const first = { key, owner, done, finish };
    running.set(`${owner} ${key}`, first);
    firsts.set(request, first);
  });

  app.addHook('onSend', async (request, reply, payload) => {
    const first = firsts.get(request);
    if (!first) return;
    // What went wrong may go right the next time.
    if (reply.statusCode < 300 && typeof payload === 'string')
      store.completeAnswer(first.key, first.owner, reply.statusCode, payload);
    else store.dropAnswer(first.key, first.owner);
    end(request);
  });
}

/** The key of a request that creates something, if it has one. */
export function keyOf(request: FastifyRequest): string | undefined {
  const key = request.headers['idempotency-key'];
  if (key === undefined || !request.routeOptions.config.route?.creates) return undefined;
  if (typeof key === 'string' && KEY.test(key)) return key;
  throw new ForkdError('invalid_request', 'Idempotency-Key: 1 to 200 printable characters without spaces');
}

function hashOf({ method, url, body }: FastifyRequest): string {
  try {
    return createHash('sha256')
      .update(JSON.stringify([method, url, body ?? null]))
      .digest('hex');
  } catch (cause) {
    // The body has not passed its schema yet; none of them nests so deep that it could not be written again.
    throw new ForkdError('invalid_request', 'the body is nested too deeply', { cause });
  }
}

import { createHash, timingSafeEqual } from 'node:crypto';
import { ForkdError } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { LOCAL } from './caller.js';

/** Exactly these, byte for byte: no decoding, no folding of case, nothing below them. */
const OPEN_PATHS = new Set(['/healthz', '/healthz/']);

/** Every request but the health check must carry the token, also one for a path that does not exist. */
export function authenticate(app: FastifyInstance, token: string | undefined): void {
  app.decorateRequest('caller', null as never);
  app.addHook('onRequest', async (request) => {
    request.caller = LOCAL;
  });
  if (token === undefined) return;
  const expected = digest(token);
  app.addHook('onRequest', async ({ raw, headers }) => {
    if (OPEN_PATHS.has(raw.url ?? '')) return;
    const presented = /^Bearer (.+)$/.exec(headers.authorization ?? '')?.[1];
    if (presented === undefined) throw new ForkdError('unauthenticated', 'missing bearer token');
    // Digests have one length whatever was sent, so the comparison takes one time.
    if (!timingSafeEqual(digest(presented), expected)) throw new ForkdError('unauthenticated', 'invalid bearer token');
  });
}

function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

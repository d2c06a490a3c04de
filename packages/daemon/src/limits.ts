import { ForkdError } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { isOpen } from './authenticate.js';
import { LOCAL } from './caller.js';

/** More requests at the same time than this are turned away at once, before anything is spent on them. */
export function limitConcurrency(app: FastifyInstance, most: number): void {
  app.addHook('onRequest', async ({ raw }, reply) => {
    if (isOpen(raw) || app.operations.size <= most) return;
    reply.header('retry-after', '1');
    throw new ForkdError('overloaded', `${most} requests are being answered already`);
  });
}

/** Each token may make so many requests a second, and twice as many at once after a pause. 0: no limit. */
export function limitRate(app: FastifyInstance, perSecond: number): void {
  if (perSecond === 0) return;
  const burst = 2 * perSecond;
  const buckets = new Map<string, { left: number; at: number }>();
  app.addHook('onRequest', async ({ caller, raw }, reply) => {
    if (isOpen(raw) || caller === LOCAL) return;
    const now = performance.now() / 1000;
    const { left, at } = buckets.get(caller.name) ?? { left: burst, at: now };
    const filled = Math.min(burst, left + (now - at) * perSecond);
    const allowed = filled >= 1;
    // A refused request costs nothing, else a client that goes on asking would never be let in again.
    buckets.set(caller.name, { left: allowed ? filled - 1 : filled, at: now });
    if (allowed) return;
    reply.header('retry-after', String(Math.ceil((1 - filled) / perSecond)));
    throw new ForkdError('rate_limited', `the token ${caller.name} may make ${perSecond} requests a second`);
  });
}

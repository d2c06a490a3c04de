import type { IncomingMessage } from 'node:http';
import { ForkdError, ROLES, roleOf } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { type Caller, LOCAL } from './caller.js';
import { isLoopback } from './config.js';
import { peerOf } from './peer.js';
import { placeOf } from './proxy/place.js';
import type { Tokens } from './tokens.js';

/** Exactly these, byte for byte: no decoding, no folding of case, nothing below them. */
const OPEN_PATHS = new Set(['/healthz', '/healthz/']);

export function isOpen({ url }: IncomingMessage): boolean {
  return OPEN_PATHS.has(url ?? '');
}

/** Every request but the health check must say who makes it, also one for a path that does not exist. */
export function authenticate(app: FastifyInstance, tokens: Tokens, domain: string | undefined): void {
  app.decorateRequest('caller', null as never);
  app.addHook('onRequest', async (request) => {
    if (!isOpen(request.raw)) request.caller = identify(tokens, domain, request.raw);
  });
}

/** Who makes a request may also do it. A route that is in no table is for admins. */
export function authorize(app: FastifyInstance): void {
  app.addHook('onRequest', async ({ caller, is404, raw, routeOptions }) => {
    if (is404 || isOpen(raw)) return;
    const { route } = routeOptions.config;
    const needed = route ? roleOf(route) : 'admin';
    if (ROLES.indexOf(caller.role) < ROLES.indexOf(needed))
      throw new ForkdError(
        'forbidden',
        `this needs the role ${needed}, and the token ${caller.name} has ${caller.role}`,
      );
  });
}

function identify(tokens: Tokens, domain: string | undefined, request: IncomingMessage): Caller {
  const { local } = peerOf(request.socket);
  const { authorization } = request.headers;
  if (!tokens.required) {
    if (!local) refuseWebPages(request, domain);
    return LOCAL;
  }
  if (local && authorization === undefined) return LOCAL;
  const presented = /^Bearer (.+)$/.exec(authorization ?? '')?.[1];
  if (presented === undefined) throw new ForkdError('unauthenticated', 'missing bearer token');
  const caller = tokens.find(presented);
  if (!caller) throw new ForkdError('unauthenticated', 'invalid bearer token');
  return caller;
}

/**
 * Without a token, being on this host is the only proof asked for. The browser of whoever sits at it is there too, and a
 * page of any site can make it call: by a name that resolves to loopback, or across origins.
 */
function refuseWebPages({ headers }: IncomingMessage, domain: string | undefined): void {
  const host = headers.host ?? '';
  const name = /^\[(.*)\]/.exec(host)?.[1] ?? host.replace(/:\d*$/, '');
  const hint = 'Call it by a loopback address, or start the daemon with --token-file.';
  const place = placeOf(host, domain);
  if (!place && name.toLowerCase() !== 'localhost' && !isLoopback(name))
    throw new ForkdError('forbidden', 'without a token, only calls to a loopback address are taken', { hint });
  const { origin } = headers;
  const from = origin !== undefined && URL.canParse(origin) ? new URL(origin).host : undefined;
  // A site in a sandbox may be in several ports of it.
  const isOwn = from === host.toLowerCase() || (place !== undefined && placeOf(from, domain)?.id === place.id);
  if (origin !== undefined && !isOwn)
    throw new ForkdError('forbidden', 'without a token, no calls from pages of other sites are taken', { hint });
}

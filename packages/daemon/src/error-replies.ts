import { asForkdError, type ErrorBody, type ErrorCode, ForkdError, ROUTES, type Route } from '@forkd/protocol';
import type { FastifyError, FastifyInstance } from 'fastify';
import { isBadUrl } from './bad-url.js';
import { heardOut } from './linger.js';

/** Bodies that are refused before they have arrived. */
const UNREAD = new Set<ErrorCode>(['too_large', 'unsupported_media_type']);

/** What the framework itself refuses, in our words. */
const FRAMEWORK: Record<string, [ErrorCode, string]> = {
  FST_ERR_CTP_INVALID_MEDIA_TYPE: ['unsupported_media_type', 'the body is not JSON'],
  FST_ERR_CTP_BODY_TOO_LARGE: ['too_large', 'the body is too large'],
  FST_ERR_CTP_EMPTY_JSON_BODY: ['invalid_request', 'the body is empty'],
  FST_ERR_CTP_INVALID_JSON_BODY: ['invalid_request', 'the body is not valid JSON'],
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: ['invalid_request', 'the body is not as long as its Content-Length says'],
};

const PATTERNS = Object.values<Route>(ROUTES).map(({ method, path }) => ({
  method,
  pattern: new RegExp(`^${path.replace(/:[a-z_]+/g, '[^/]+').replace('*', '.*')}$`),
}));

/** Every answer from 400 on has one shape, whatever caused it, and tells a remote client nothing about the host. */
export function replyErrors(app: FastifyInstance): void {
  app.setErrorHandler(async (thrown: FastifyError, request, reply) => {
    const error = translate(thrown);
    if (UNREAD.has(error.code)) await heardOut(request.raw);
    request.operation.outcome = error.code;
    if (error.code === 'internal') request.operation.broke = thrown;
    const { retry_after_secs: after } = error.details;
    if (after !== undefined) reply.header('retry-after', String(after));
    return reply.code(error.status).send(errorBody(error, request.id));
  });
  app.addHook('onRequest', async ({ raw }) => {
    if (raw.httpVersion === '1.1' && raw.headers.host === undefined)
      throw new ForkdError('invalid_request', 'the header Host is missing');
  });
  app.setNotFoundHandler((request, reply) => {
    if (isBadUrl(request.raw)) throw new ForkdError('invalid_request', 'the URL is not valid');
    const path = request.url.split('?')[0]!;
    const methods = PATTERNS.filter(({ pattern }) => pattern.test(path)).map(({ method }) => method);
    if (methods.length === 0)
      throw new ForkdError('route_not_found', `there is no ${request.method} ${path.slice(0, 200)}`);
    reply.header('allow', methods.join(', '));
    throw new ForkdError(
      'method_not_allowed',
      `${path.slice(0, 200)} takes ${methods.join(', ')}, not ${request.method}`,
    );
  });
}

export function errorBody(error: ForkdError, requestId: string): ErrorBody {
  return { ...errorFields(error), request_id: requestId };
}

export function errorFields(error: ForkdError): Omit<ErrorBody, 'request_id'> {
  // What broke inside is for the log: its message may name files of the host.
  const message = error.code === 'internal' ? 'something broke inside the daemon' : told(error);
  const hint = withoutPaths(error.hint);
  // Of the other codes, details are for the log.
  const isTold = ['state_conflict', 'budget_exceeded', 'quota_exceeded'].includes(error.code);
  return { error: message, code: error.code, hint, ...(isTold && { details: error.details }) };
}

function translate(thrown: FastifyError): ForkdError {
  const known = FRAMEWORK[thrown.code];
  if (known) return new ForkdError(known[0], known[1], { cause: thrown });
  if (!(thrown instanceof ForkdError) && thrown.statusCode !== undefined && thrown.statusCode < 500)
    return new ForkdError('invalid_request', 'the request is malformed', { cause: thrown });
  return asForkdError(thrown);
}

/** Paths of a URL, and paths in a guest that it refused, are those the caller has named. */
function told({ message, details, code }: ForkdError): string {
  const named = details.guest_code !== undefined || code === 'route_not_found' || code === 'method_not_allowed';
  return named ? message : withoutPaths(message);
}

function withoutPaths(message: string): string {
  return message.replace(/(^|[\s"'(:])\/(?:[\w.@+-]+\/)+[\w.@+-]*/g, '$1(path)');
}

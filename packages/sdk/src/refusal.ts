import type { IncomingMessage } from 'node:http';
import { ERRORS, ErrorBody, type ErrorCode, ForkdError } from '@forkd/protocol';

const REFUSAL_LIMIT = 1 << 20;

/** The error a daemon has answered with. A code of a newer daemon becomes the nearest one known here. */
export async function refusal(response: IncomingMessage): Promise<ForkdError> {
  const status = response.statusCode ?? 500;
  const text = await collect(response, REFUSAL_LIMIT).catch(() => '');
  const { error, code, hint, request_id, details } = parseBody(text);
  const after = Number(response.headers['retry-after']);
  return new ForkdError(knownCode(code, status), error ?? `the daemon answered ${status}`, {
    ...(hint && { hint }),
    details: {
      ...details,
      ...(request_id && { request_id }),
      ...(after > 0 && { retry_after_secs: after }),
    },
  });
}

/** No answer at all: nobody listens, or the connection broke. */
export function unreachable(cause: NodeJS.ErrnoException): ForkdError {
  if (cause instanceof ForkdError) return cause;
  const why = cause.code === 'ECONNREFUSED' || cause.code === 'ENOENT' ? 'nobody listens there' : cause.message;
  if (cause.code === 'EACCES')
    return new ForkdError('not_permitted', 'this user may not use the socket of the daemon', { cause });
  return new ForkdError('unreachable', `cannot reach the daemon: ${why}`, { cause });
}

export async function collect(response: IncomingMessage, limit: number): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  try {
    for await (const chunk of response as AsyncIterable<Buffer>) {
      size += chunk.length;
      if (size > limit) throw new ForkdError('too_large', 'the answer of the daemon is too large');
      chunks.push(chunk);
    }
  } catch (thrown) {
    throw unreachable(thrown as Error);
  }
  return Buffer.concat(chunks).toString();
}

function parseBody(text: string): { [Field in keyof ErrorBody]?: ErrorBody[Field] | undefined } {
  try {
    const parsed = ErrorBody.partial().safeParse(JSON.parse(text));
    if (parsed.success) return parsed.data;
  } catch {
    // A proxy in between answers in its own words.
  }
  return {};
}

/** Of the codes known here, the one that says most nearly the same. */
export function knownCode(code: string | undefined, status = 500): ErrorCode {
  if (code !== undefined && Object.hasOwn(ERRORS, code)) return code as ErrorCode;
  if (status === 401) return 'unauthenticated';
  if (status === 403) return 'forbidden';
  if (status === 429) return 'rate_limited';
  if (status === 502 || status === 503) return 'unreachable';
  if (status === 504) return 'timeout';
  return status < 500 ? 'invalid_request' : 'internal';
}

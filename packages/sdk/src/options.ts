import { ForkdError } from '@forkd/protocol';

/** Where the daemon is and who asks. What is not given comes from the environment. */
export interface ForkdOptions {
  /** @default FORKD_URL, else http://127.0.0.1:8889 */
  url?: string;
  /** Path of the daemon's Unix socket; used where no `url` is given. @default FORKD_SOCKET */
  socket?: string;
  /** Empty: none. @default FORKD_TOKEN */
  token?: string;
  /** Until a call is answered, where the call does not say. @default 60000 */
  timeout_ms?: number;
  /** How often a call that may be repeated safely is repeated. @default 2 */
  retries?: number;
}

/** What every call takes. */
export interface CallOptions {
  signal?: AbortSignal | undefined;
  /** For streams: until the first byte. */
  timeout_ms?: number | undefined;
}

export interface Target {
  url: URL;
  socket: string | undefined;
  token: string | undefined;
  timeout_ms: number;
  retries: number;
}

const DEFAULT_URL = 'http://127.0.0.1:8889';

/** What is given beats the environment; a `url` beats a `socket` beside it. */
export function readTarget(options: ForkdOptions, env: NodeJS.ProcessEnv = process.env): Target {
  const { timeout_ms = 60_000, retries = 2 } = options;
  const given = options.url ?? (options.socket === undefined ? env.FORKD_URL || undefined : undefined);
  const socket = given === undefined ? options.socket || env.FORKD_SOCKET || undefined : undefined;
  const token = (options.token ?? env.FORKD_TOKEN) || undefined;
  // The message must not repeat the token.
  if (token !== undefined && !/^[\x21-\x7e]+$/.test(token))
    throw new ForkdError('invalid_request', 'the token has characters that no header may have', {
      hint: 'Is there a line break in FORKD_TOKEN?',
    });
  return { url: parseUrl(given ?? DEFAULT_URL), socket, token, timeout_ms, retries };
}

function parseUrl(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url && (url.protocol === 'http:' || url.protocol === 'https:')) return url;
  throw new ForkdError('invalid_request', `not the URL of a daemon: ${JSON.stringify(text.slice(0, 200))}`, {
    hint: `Give it as ${DEFAULT_URL}.`,
  });
}

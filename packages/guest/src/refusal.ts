import { type ErrorCode, ForkdError } from '@forkd/protocol';

/** The agent's code (a Connect name, or the HTTP status) in our registry, with a better hint; anything else is `guest_error`. */
export type Refusal = Partial<Record<string, readonly [ErrorCode, hint?: string]>>;

const COMMON: Refusal = {
  deadline_exceeded: ['timeout'],
  504: ['timeout'],
  resource_exhausted: ['too_large'],
  413: ['too_large'],
  507: ['disk_full', 'The disk of the sandbox is full; free space in it.'],
};

const MESSAGE_LIMIT = 4096;

export function refused(what: string, code: string, message: string, special: Refusal = {}): ForkdError {
  const [known, hint] = special[code] ?? COMMON[code] ?? ['guest_error'];
  return new ForkdError(known, `${what}: ${message.slice(0, MESSAGE_LIMIT)}`, {
    ...(hint !== undefined && { hint }),
    details: { guest_code: code },
  });
}

/** What a reply with an error status says. Its body is read generously: it only becomes a message. */
export function refusal(what: string, status: number, body: Buffer, special?: Refusal): ForkdError {
  let code = String(status);
  let message = `the agent answered ${status}`;
  try {
    const parsed = JSON.parse(body.toString()) as { code?: unknown; message?: unknown } | null;
    if (typeof parsed?.message === 'string') message = parsed.message;
    if (typeof parsed?.code === 'string' && status !== 507) code = parsed.code;
  } catch {
    // Not JSON: the status says enough.
  }
  return refused(what, code, message, special);
}

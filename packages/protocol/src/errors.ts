/**
 * The one registry of everything that can go wrong. A code without a status, a retry rule and a hint does not compile.
 * `hint` is the default advice; the place that throws may give a better one.
 */
export type RetryRule = 'retry' | 'fix-request' | 'give-up';

interface ErrorRule {
  status: number;
  retry: RetryRule;
  hint: string;
}

export const ERRORS = {
  invalid_request: { status: 400, retry: 'fix-request', hint: 'Correct the named field and try again.' },
  unauthenticated: { status: 401, retry: 'fix-request', hint: 'Send the header "Authorization: Bearer TOKEN".' },
  forbidden: { status: 403, retry: 'fix-request', hint: 'Use a token with a role that may do this.' },
  rate_limited: { status: 429, retry: 'retry', hint: 'Wait as long as the header Retry-After says.' },
  overloaded: { status: 503, retry: 'retry', hint: 'Wait as long as the header Retry-After says, or raise the limit.' },
  idempotency_conflict: {
    status: 422,
    retry: 'fix-request',
    hint: 'This Idempotency-Key was used for another request: choose a new one.',
  },
  unreachable: {
    status: 503,
    retry: 'retry',
    hint: 'Is the daemon running? Start it with `forkd serve`, and check FORKD_URL.',
  },
  route_not_found: { status: 404, retry: 'fix-request', hint: 'The routes are listed in openapi.json.' },
  method_not_allowed: { status: 405, retry: 'fix-request', hint: 'The header Allow names the methods of this path.' },
  unsupported_media_type: {
    status: 415,
    retry: 'fix-request',
    hint: 'Send JSON, with "Content-Type: application/json".',
  },
  request_timeout: { status: 408, retry: 'retry', hint: 'Send the whole request without long pauses.' },
  expectation_failed: {
    status: 417,
    retry: 'fix-request',
    hint: 'Leave the header Expect out, or send "100-continue".',
  },
  headers_too_large: { status: 431, retry: 'fix-request', hint: 'Send a shorter URL, and fewer or shorter headers.' },
  recipe_invalid: {
    status: 400,
    retry: 'fix-request',
    hint: 'Compare the recipe with recipes/python-numpy/recipe.toml.',
  },
  recipe_not_found: { status: 404, retry: 'fix-request', hint: 'List the recipes/ folder for the names that exist.' },
  snapshot_not_found: { status: 404, retry: 'fix-request', hint: 'List the snapshots to see which tags exist.' },
  sandbox_not_found: {
    status: 404,
    retry: 'fix-request',
    hint: 'The sandbox has ended or never existed; list the sandboxes.',
  },
  workspace_not_found: { status: 404, retry: 'fix-request', hint: 'List the workspaces to see which names exist.' },
  file_not_found: { status: 404, retry: 'fix-request', hint: 'Check the path inside the sandbox.' },
  tag_exists: { status: 409, retry: 'fix-request', hint: 'Choose another tag or remove the existing snapshot first.' },
  state_conflict: { status: 409, retry: 'retry', hint: 'Wait for the running operation to end and try again.' },
  budget_exceeded: {
    status: 409,
    retry: 'fix-request',
    hint: 'End sandboxes or remove branches of this line, or spawn its first sandbox with a larger max_forks.',
  },
  quota_exceeded: {
    status: 403,
    retry: 'fix-request',
    hint: 'End sandboxes of this owner, or have its quota raised in the tokens file of the daemon.',
  },
  host_full: {
    status: 507,
    retry: 'retry',
    hint: 'End sandboxes, spawn fewer or smaller ones, or start the daemon with a larger --overcommit.',
  },
  too_large: { status: 413, retry: 'fix-request', hint: 'Send or ask for less at once, or use streaming.' },
  warmup_failed: {
    status: 422,
    retry: 'fix-request',
    hint: 'Run the warm-up by hand in the image and read its output.',
  },
  not_permitted: { status: 403, retry: 'fix-request', hint: 'Run as root.' },
  cancelled: { status: 499, retry: 'give-up', hint: 'The caller gave up; everything it had started was released.' },
  guest_error: {
    status: 502,
    retry: 'fix-request',
    hint: 'The agent in the guest refused the call; read the message.',
  },
  guest_protocol: {
    status: 502,
    retry: 'give-up',
    hint: 'The guest sent something that breaks the protocol; do not trust this sandbox.',
  },
  vmm_exited: {
    status: 502,
    retry: 'retry',
    hint: 'Read the console log of the VM and the kernel log of the host (out of memory?).',
  },
  engine_unavailable: {
    status: 503,
    retry: 'give-up',
    hint: 'Ask the engine for its probe report to see what is missing.',
  },
  host_unfit: { status: 503, retry: 'give-up', hint: 'Install what the message names.' },
  timeout: { status: 504, retry: 'retry', hint: 'Give it more time, or look at why the guest is slow.' },
  disk_full: {
    status: 507,
    retry: 'fix-request',
    hint: 'Free space on the data directory, or point FORKD_DATA at a larger disk.',
  },
  internal: { status: 500, retry: 'give-up', hint: 'This is a bug in forkd; please report it with the log.' },
} as const satisfies Record<string, ErrorRule>;

export type ErrorCode = keyof typeof ERRORS;

export interface ErrorExtras {
  hint?: string;
  details?: Record<string, unknown>;
  cause?: unknown;
}

/** The only error class that crosses package borders. */
export class ForkdError extends Error {
  override readonly name = 'ForkdError';
  readonly code: ErrorCode;
  readonly hint: string;
  readonly details: Record<string, unknown>;

  constructor(code: ErrorCode, message: string, extras: ErrorExtras = {}) {
    super(message, extras.cause === undefined ? undefined : { cause: extras.cause });
    this.code = code;
    this.hint = extras.hint ?? ERRORS[code].hint;
    this.details = extras.details ?? {};
  }

  get status(): number {
    return ERRORS[this.code].status;
  }
}

/** Gives any thrown value a code, so that callers handle one type. Errno values that users meet get their own codes. */
export function asForkdError(thrown: unknown): ForkdError {
  if (thrown instanceof ForkdError) return thrown;
  if (thrown instanceof Error) {
    const errno = (thrown as NodeJS.ErrnoException).code;
    if (errno === 'ENOSPC' || errno === 'EDQUOT')
      return new ForkdError('disk_full', 'the disk is full', { cause: thrown });
    if (errno === 'EACCES' || errno === 'EPERM')
      return new ForkdError('not_permitted', thrown.message, { cause: thrown });
    if (thrown.name === 'AbortError') return new ForkdError('cancelled', 'cancelled', { cause: thrown });
    return new ForkdError('internal', thrown.message, { cause: thrown });
  }
  return new ForkdError('internal', String(thrown));
}

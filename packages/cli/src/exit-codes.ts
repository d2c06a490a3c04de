import type { ErrorCode } from '@forkd/protocol';

/** What a script can tell apart; docs/cli.md has the table for people. */
export const EXIT_CODES = {
  invalid_request: 2,
  unauthenticated: 5,
  forbidden: 5,
  rate_limited: 1,
  request_timeout: 1,
  expectation_failed: 1,
  headers_too_large: 1,
  overloaded: 1,
  idempotency_conflict: 4,
  unreachable: 6,
  route_not_found: 1,
  method_not_allowed: 1,
  unsupported_media_type: 1,
  recipe_invalid: 1,
  recipe_not_found: 3,
  snapshot_not_found: 3,
  sandbox_not_found: 3,
  workspace_not_found: 3,
  file_not_found: 3,
  tag_exists: 4,
  state_conflict: 4,
  budget_exceeded: 4,
  quota_exceeded: 4,
  host_full: 7,
  too_large: 1,
  warmup_failed: 1,
  not_permitted: 5,
  cancelled: 130,
  guest_error: 1,
  guest_protocol: 1,
  vmm_exited: 1,
  engine_unavailable: 7,
  host_unfit: 7,
  timeout: 124,
  disk_full: 7,
  internal: 1,
} as const satisfies Record<ErrorCode, number>;

/** How a program ends that was told to stop, or whose reader has gone: 128 and the number of the signal. */
export const STOPPED = { SIGINT: 130, SIGTERM: 143, SIGHUP: 129, SIGPIPE: 141 } as const;

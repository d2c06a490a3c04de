export { asForkdError, ERRORS, type ErrorCode, type ErrorExtras, ForkdError, type RetryRule } from './errors.js';
export { newSandboxId, parseTag, SandboxId, Tag } from './ids.js';

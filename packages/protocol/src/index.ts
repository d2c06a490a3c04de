export { asForkdError, ERRORS, type ErrorCode, type ErrorExtras, ForkdError, type RetryRule } from './errors.js';
export { newSandboxId, parseTag, SandboxId, Tag } from './ids.js';
export * from './rest/fields.js';
export { openapi } from './rest/openapi.js';
export { ROUTES, type Route, type RouteName } from './rest/routes.js';
export * from './rest/sandboxes.js';
export * from './rest/snapshots.js';
export * from './rest/workspaces.js';

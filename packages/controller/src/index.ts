export { Controller, type SpawnOptions, type SpawnResult } from './controller.js';
export type { CreateOptions } from './create-snapshot.js';
export { type Leaks, leaks, NO_LEAKS } from './leaks.js';
export { inParallel } from './parallel.js';
export type { Progress, Report } from './progress.js';
export { cpuMs } from './quiet.js';
export { Sandbox, type Timeline } from './sandbox.js';
export { type SnapshotMeta, snapshotFiles } from './snapshot.js';
export type { Source } from './source.js';

import { cgroupChecks } from './cgroups.js';
import type { Check } from './check.js';
import { clockChecks } from './clock.js';
import { daemonChecks } from './daemon.js';
import { dataChecks } from './data-directory.js';
import { databaseChecks } from './database.js';
import { engineChecks } from './engines.js';
import { jailChecks } from './jail.js';
import { branchChecks } from './live-branch.js';
import { memoryChecks } from './memory.js';
import { networkChecks } from './network.js';
import { platformChecks } from './platform.js';

/** Every check there is, in the order of the report. */
export const CHECKS: readonly Check[] = [
  ...platformChecks,
  ...clockChecks,
  ...engineChecks,
  ...jailChecks,
  ...branchChecks,
  ...cgroupChecks,
  ...memoryChecks,
  ...networkChecks,
  ...dataChecks,
  ...databaseChecks,
  ...daemonChecks,
];

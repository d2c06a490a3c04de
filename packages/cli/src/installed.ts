import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));

/** Other programs of forkd, started by path. */
export const DAEMON = `${ROOT}bin/forkd-controller`;
export const DOCTOR = `${ROOT}packages/daemon/dist/doctor.js`;
export const SETUP = `${ROOT}scripts/setup`;
export const VERSION = '0.1.0';

/** Where a local daemon keeps everything. */
export function dataDirectory(env: NodeJS.ProcessEnv = process.env): string {
  return env.FORKD_DATA || '/var/lib/forkd';
}

export function daemonSocket(env: NodeJS.ProcessEnv = process.env): string {
  return env.FORKD_SOCKET || `${dataDirectory(env)}/forkd.sock`;
}

export function daemonLog(env: NodeJS.ProcessEnv = process.env): string {
  return `${dataDirectory(env)}/daemon.log`;
}

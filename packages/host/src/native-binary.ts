import { fileURLToPath } from 'node:url';

/** Where `make build` puts the two static binaries; an installation says so with FORKD_NATIVE. */
export function nativeBinary(name: 'forkd-host-helper' | 'forkd-agent'): string {
  const directory = process.env.FORKD_NATIVE ?? fileURLToPath(new URL('../../../native/dist', import.meta.url));
  return `${directory}/${name}`;
}

import { fileURLToPath } from 'node:url';

/** Where `make build` puts what is not TypeScript; an installation says so with FORKD_NATIVE. */
export function nativeBinary(name: 'forkd-host-helper' | 'forkd-agent' | 'forkd-read-only-open.so'): string {
  const directory = process.env.FORKD_NATIVE ?? fileURLToPath(new URL('../../../native/dist', import.meta.url));
  return `${directory}/${name}`;
}

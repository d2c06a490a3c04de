import { fileURLToPath } from 'node:url';

/** Raw samples of every run; ignored by git. */
export function resultsDirectory(): string {
  return fileURLToPath(new URL('../results', import.meta.url));
}

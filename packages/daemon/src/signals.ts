import { constants } from 'node:os';
import { asForkdError } from '@forkd/protocol';
import type { FastifyBaseLogger } from 'fastify';

/** Resolves at the first SIGTERM or SIGINT; the second ends the process at once. */
export function stopSignal(): Promise<void> {
  return new Promise((resolve) => {
    let asked = false;
    for (const signal of ['SIGTERM', 'SIGINT'] as const)
      process.on(signal, () => {
        if (asked) process.exit(128 + constants.signals[signal]);
        asked = true;
        resolve();
      });
  });
}

/** Does every part at each SIGHUP. One that fails has kept what it had, and does not keep the others from it. */
export function onHangup(log: FastifyBaseLogger, parts: Record<string, () => void>): void {
  process.on('SIGHUP', () => {
    for (const [what, reload] of Object.entries(parts))
      try {
        reload();
        log.info(`read again: ${what}`);
      } catch (thrown) {
        const { message, hint, code } = asForkdError(thrown);
        log.error({ code, hint, reason: message }, `kept as it was: ${what}`);
      }
  });
}

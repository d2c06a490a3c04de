import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { ForkdError } from '@forkd/protocol';
import { Forkd } from '@forkd/sdk';
import { command } from '../command.js';
import { daemonSocket } from '../installed.js';
import { answers } from '../probe.js';

/** Longer than the daemon waits for requests that are still being answered. */
const PATIENCE_MS = 40_000;
const POLL_MS = 50;

export const stop = command({
  name: 'stop',
  group: 'daemon',
  summary: 'End the daemon on the local socket; its sandboxes run on, for the next one',
  flags: {},
  async run({ output, env, signal }) {
    const place = { socket: daemonSocket(env) };
    const running = await answers(place, signal);
    const pid = running ? (await new Forkd(place).version({ signal })).pid : undefined;
    if (pid !== undefined) {
      process.kill(pid, 'SIGTERM');
      for (const deadline = Date.now() + PATIENCE_MS; isAlive(pid); await sleep(POLL_MS, undefined, { signal }))
        if (Date.now() > deadline)
          throw new ForkdError('timeout', `the daemon (pid ${pid}) does not end`, { hint: 'See `forkd logs`.' });
    }
    await output.result({ stopped: pid !== undefined, pid: pid ?? null }, () =>
      pid === undefined ? 'no daemon runs on the local socket' : `the daemon (pid ${pid}) has ended`,
    );
  },
});

/** One that only waits to be collected is gone. */
function isAlive(pid: number): boolean {
  try {
    return !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, existsSync, mkdirSync, openSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { ForkdError } from '@forkd/protocol';
import { DAEMON, daemonLog, daemonSocket, dataDirectory } from './installed.js';
import { answers, type ConnectOptions } from './probe.js';

/** The first start on a host fetches a kernel. */
const START_MS = 600_000;
const POLL_MS = 50;
const BUSY = 99;

/**
 * Starts a daemon that outlives this program and waits until it answers. It holds a lock for as long as it lives, so of
 * several that are started at once one stays, and the others only wait for it.
 */
export async function startDaemon({ env, signal, say }: Omit<ConnectOptions, 'url' | 'token'>): Promise<void> {
  if (!existsSync(DAEMON))
    throw new ForkdError('host_unfit', 'the daemon is not built', { hint: 'Run `make build` in the folder of forkd.' });
  const data = dataDirectory(env);
  const socket = daemonSocket(env);
  const log = daemonLog(env);
  mkdirSync(data, { recursive: true, mode: 0o700 });
  say(`starting a daemon (log: ${log})`);
  const logged = existsSync(log) ? readFileSync(log).length : 0;
  let started = launch(data, socket, log);
  for (const deadline = Date.now() + START_MS; Date.now() < deadline; await sleep(POLL_MS)) {
    if (signal.aborted) throw new ForkdError('cancelled', 'cancelled');
    if (await answers({ socket }, signal)) return;
    const code = started.exitCode();
    if (code === BUSY) {
      await sleep(POLL_MS * 4);
      started = launch(data, socket, log);
    } else if (code !== undefined) throw ended(readFileSync(log).subarray(logged).toString(), log);
  }
  throw new ForkdError('timeout', 'the daemon did not begin to answer', { hint: `Read ${log}.` });
}

function launch(data: string, socket: string, log: string): { exitCode(): number | undefined } {
  const file = openSync(log, 'a', 0o600);
  const lock = ['--no-fork', '--nonblock', '--conflict-exit-code', String(BUSY), `${data}/daemon.lock`];
  const daemon = [DAEMON, '--data', data, '--socket', socket, '--bind', 'none'];
  const child = spawn('flock', [...lock, ...daemon], { detached: true, stdio: ['ignore', file, file], cwd: '/' });
  let code: number | undefined;
  void once(child, 'exit').then(
    ([status]) => {
      code = status ?? 1;
    },
    () => {
      code = 1;
    },
  );
  child.unref();
  closeSync(file);
  return { exitCode: () => code };
}

/** A daemon that cannot start says why at the end of its log. */
function ended(text: string, log: string): ForkdError {
  const last = (word: string): string | undefined =>
    text
      .match(new RegExp(`^${word}: (.*)$`, 'gm'))
      ?.at(-1)
      ?.slice(word.length + 2);
  return new ForkdError('host_unfit', `the daemon could not start: ${last('error') ?? 'it ended at once'}`, {
    hint: last('hint') ?? `Read ${log}, and run \`forkd doctor\`.`,
  });
}

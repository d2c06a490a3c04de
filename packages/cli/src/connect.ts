import { ForkdError } from '@forkd/protocol';
import { Forkd } from '@forkd/sdk';
import { daemonSocket } from './installed.js';
import { answers, type ConnectOptions } from './probe.js';
import { startDaemon } from './start-daemon.js';

const LOCAL_URL = 'http://127.0.0.1:8889';

/** The daemon that was named; else the local one, which a user who may is given when none runs. */
export async function connect(options: ConnectOptions): Promise<Forkd> {
  const running = await runningDaemon(options);
  if (running) return running;
  if (process.geteuid?.() !== 0)
    throw new ForkdError('unreachable', 'no daemon runs on this host', {
      hint: 'Start one with `sudo forkd serve`, or name another host with FORKD_URL.',
    });
  await startDaemon(options);
  return new Forkd({ socket: daemonSocket(options.env), ...tokenOf(options) });
}

/** Which daemon answers: the one that was named, the one on the local socket, the one on the local port. */
export async function runningDaemon({ url, env, signal, ...options }: ConnectOptions): Promise<Forkd | undefined> {
  const token = tokenOf(options);
  if (url !== undefined) return new Forkd({ url, ...token });
  // Who names a socket means that one and no other daemon of this host.
  const places = [{ socket: daemonSocket(env) }, ...(env.FORKD_SOCKET ? [] : [{ url: LOCAL_URL }])];
  for (const place of places) if (await answers(place, signal)) return new Forkd({ ...place, ...token });
  return undefined;
}

function tokenOf({ token }: { token: string | undefined }): { token?: string } {
  return token === undefined ? {} : { token };
}

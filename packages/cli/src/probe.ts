import { ForkdError } from '@forkd/protocol';
import { Forkd } from '@forkd/sdk';

export interface ConnectOptions {
  url: string | undefined;
  token: string | undefined;
  env: NodeJS.ProcessEnv;
  signal: AbortSignal;
  say(line: string): void;
}

const PROBE_MS = 5_000;

/** Whether a daemon is there. One that is there and does not answer in time is an error, not an absence. */
export async function answers(place: { socket: string } | { url: string }, signal: AbortSignal): Promise<boolean> {
  // Whoever answers first has not shown yet that it is a daemon: it gets no token.
  using probe = new Forkd({ ...place, token: '', retries: 0 });
  try {
    await probe.health({ timeout_ms: PROBE_MS, signal });
    return true;
  } catch (error) {
    if (!(error instanceof ForkdError) || error.code === 'timeout' || error.code === 'cancelled') throw error;
    return false;
  }
}

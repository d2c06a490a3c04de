import type { AccelReport, ProbeReport } from '@forkd/engine';
import type { HostHelper } from '@forkd/host';
import type { Kernel } from '@forkd/images';
import { asForkdError } from '@forkd/protocol';

export type Status = 'pass' | 'warn' | 'fail' | 'skip';

export interface Outcome {
  status: Status;
  detail: string;
  /** The way out, as a command where there is one; `null` only on `pass`. */
  hint: string | null;
}

export type Place = { url: string } | { socket: string };

/** What the checks look at. */
export interface Host {
  data: string;
  /** Where a daemon is looked for, in this order. */
  daemons: Place[];
  token: string | undefined;
  helper: HostHelper;
  /** An empty directory outside of the data directory, removed at the end. */
  scratch: string;
  /** The stored guest kernel; throws where there is none yet. */
  kernel: () => Promise<Kernel>;
  probe: () => Promise<ProbeReport>;
  userNetwork: () => Promise<AccelReport>;
  /** Aborts when the check has used up its time. */
  signal: AbortSignal;
}

export interface Check {
  name: string;
  /** @default 5 */
  seconds?: number;
  run: (host: Host) => Outcome | Promise<Outcome>;
}

export type Result = { name: string } & Outcome;

export function pass(detail: string): Outcome {
  return { status: 'pass', detail, hint: null };
}

export function warn(detail: string, hint: string): Outcome {
  return { status: 'warn', detail, hint };
}

export function fail(detail: string, hint: string): Outcome {
  return { status: 'fail', detail, hint };
}

export function skip(detail: string, hint: string): Outcome {
  return { status: 'skip', detail, hint };
}

const HANGS = 'Something it asks does not answer: look at dmesg, and at the mounts (a dead network file system?).';

/** Settles within the check's time, whatever the check does. */
export async function runCheck({ name, seconds = 5, run }: Check, host: Omit<Host, 'signal'>): Promise<Result> {
  const stop = new AbortController();
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<Outcome>((resolve) => {
    timer = setTimeout(() => resolve(fail(`no answer within ${seconds} s`, HANGS)), seconds * 1000);
  });
  const outcome = (async () => run({ ...host, signal: stop.signal }))().catch((thrown) => {
    const { message, hint } = asForkdError(thrown);
    return fail(message, hint);
  });
  try {
    return { name, ...(await Promise.race([outcome, late])) };
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

import { asForkdError, ForkdError } from '@forkd/protocol';

/** Gives whatever goes wrong a code; once the caller has given up, that is the code. */
export async function guarded<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (thrown) {
    if (!signal.aborted) throw asForkdError(thrown);
    if (signal.reason instanceof ForkdError) throw signal.reason;
    throw new ForkdError('cancelled', 'cancelled', { cause: thrown });
  }
}

/** Waits no longer than the caller wants to; the work itself goes on. */
export async function unlessAborted<T>(signal: AbortSignal, work: Promise<T>): Promise<T> {
  // Whatever becomes of it then is nobody's business, and must not end the program.
  work.catch(() => {});
  signal.throwIfAborted();
  let stop = (): void => {};
  const aborted = new Promise<never>((_, reject) => {
    stop = () => reject(signal.reason);
  });
  signal.addEventListener('abort', stop, { once: true });
  try {
    return await Promise.race([work, aborted]);
  } finally {
    signal.removeEventListener('abort', stop);
  }
}

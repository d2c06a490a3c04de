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

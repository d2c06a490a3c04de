import type { Twin } from '@forkd/engine';
import type { HostHelper, HostProcess } from '@forkd/host';

/** A frozen copy of a VMM, whose RAM is a private mapping of `memory`. */
export function twinOf(helper: HostHelper, twin: HostProcess, memory: string): Twin {
  return {
    pid: twin.pid,
    async capture(to, signal) {
      signal?.throwIfAborted();
      const end = (): void => void twin.kill().catch(() => {});
      signal?.addEventListener('abort', end, { once: true });
      try {
        return await helper.capture(twin, memory, to, { background: true });
      } catch (failure) {
        signal?.throwIfAborted();
        throw failure;
      } finally {
        signal?.removeEventListener('abort', end);
      }
    },
    [Symbol.asyncDispose]: () => end(twin),
  };
}

export async function end(twin: HostProcess): Promise<void> {
  // Without a helper there is no twin either.
  await twin.kill().catch(() => {});
  await twin.exited;
}

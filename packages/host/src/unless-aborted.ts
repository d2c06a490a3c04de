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

/** Runs `task` for 0…n-1, at most `width` at a time; settles when all have. Tasks report failure in their value, not by throwing. */
export async function inParallel<T>(n: number, width: number, task: (index: number) => Promise<T>): Promise<T[]> {
  const results: T[] = new Array(n);
  let next = 0;
  const worker = async (): Promise<void> => {
    for (let index = next++; index < n; index = next++) results[index] = await task(index);
  };
  await Promise.all(Array.from({ length: Math.min(width, n) }, worker));
  return results;
}

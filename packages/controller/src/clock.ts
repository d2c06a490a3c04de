/** Unix time in whole seconds, as records and snapshots have it. */
export function now(): number {
  return Math.floor(Date.now() / 1000);
}

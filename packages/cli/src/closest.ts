/** The known word most like `word`, if any is like it at all. */
export function closest(word: string, known: readonly string[]): string | undefined {
  const ranked = known.map((name) => ({ name, far: distance(word, name) })).sort((a, b) => a.far - b.far);
  const [best] = ranked;
  return best && best.far <= Math.max(2, Math.floor(best.name.length / 2)) ? best.name : undefined;
}

/** How many letters must be changed, added or dropped. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length && i <= 100; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next[j] = Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1));
    row = next;
  }
  return row[b.length]!;
}

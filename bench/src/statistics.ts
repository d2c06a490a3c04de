/** The value below which a share `p` of the samples lies; between two samples, in proportion. */
export function percentile(samples: number[], p: number): number {
  const sorted = [...samples].sort((a, b) => a - b);
  const place = p * (sorted.length - 1);
  const [lower, upper] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
  return lower === undefined || upper === undefined ? Number.NaN : lower + (upper - lower) * (place % 1);
}

export function mean(samples: number[]): number {
  return samples.reduce((sum, value) => sum + value, 0) / samples.length;
}

export function rounded(value: number, digits = 1): number {
  return Number(value.toFixed(digits));
}

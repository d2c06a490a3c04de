import { percentile, rounded } from './statistics.js';

interface Figures {
  guest_gap_ms: { p50: number; p90: number };
  first_eval_ms: number;
  dirty_bytes: number;
  physical_bytes: number;
}

export interface BranchSummary {
  live: Record<'0' | '100', Figures>;
  full: Record<'100', Figures>;
  consecutive_live_gap_ms: number[];
  depth_spawn_ms: Record<'0' | '5', number>;
}

/** One line per goal: its figure as a share of what it may be, so that up to 1 it holds. */
export function goals({ live, full, consecutive_live_gap_ms: row, depth_spawn_ms }: BranchSummary): string[] {
  const { guest_gap_ms: gap, dirty_bytes, physical_bytes } = live['100'];
  const half = row.length / 2;
  const shares = {
    'live gap at 100 MiB, p50, of 15 ms': gap.p50 / 15,
    'live gap at 100 MiB, p90, of 25 ms': gap.p90 / 25,
    'live gap at 100 MiB, of a tenth of full': gap.p50 / (full['100'].guest_gap_ms.p50 / 10),
    'gap of later branches in a row, of 1.5 x the earlier': median(row.slice(half)) / median(row.slice(0, half)) / 1.5,
    'call to first eval in a child, of 400 ms': live['0'].first_eval_ms / 400,
    'call to first eval in a child at 100 MiB, of 400 ms': live['100'].first_eval_ms / 400,
    'spawn at depth 5, of 1.1 x depth 0': depth_spawn_ms['5'] / depth_spawn_ms['0'] / 1.1,
    'physical bytes, of 1.2 x dirty bytes': physical_bytes / dirty_bytes / 1.2,
  };
  return Object.entries(shares).map(
    ([what, share]) => `${share <= 1 ? 'holds ' : 'MISSED'} ${rounded(share, 2).toFixed(2)}  ${what}`,
  );
}

function median(values: number[]): number {
  return percentile(values, 0.5);
}

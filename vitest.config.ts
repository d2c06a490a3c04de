import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    globalSetup: './scripts/test-images.ts',
    include: ['packages/*/src/**/*.test.ts', 'bench/src/**/*.test.ts'],
    // Files share two cores and measure nothing, but a VM beside ten others misses deadlines that users would never see.
    fileParallelism: false,
    testTimeout: 120_000,
    // An emulated guest beside a busy host may take seconds for what is a moment elsewhere.
    expect: { poll: { timeout: 20_000 } },
    hookTimeout: 600_000,
    reporters: ['default', './scripts/count-reporter.ts'],
  },
});

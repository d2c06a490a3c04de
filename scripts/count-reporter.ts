import type { Reporter, TestModule } from 'vitest/node';

/** Ends a run with the line CI reads, after a list of what was skipped and why. */
export default class CountReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], errors: readonly unknown[]): void {
    const count = { passed: 0, failed: 0, skipped: 0 };
    const skipped: string[] = [];
    for (const module of modules) {
      if (module.children.size === 0) count.failed += 1;
      for (const test of module.children.allTests()) {
        const result = test.result();
        if (result.state === 'pending') continue;
        count[result.state] += 1;
        if (result.state === 'skipped')
          skipped.push(`skipped: ${test.fullName}${result.note ? `: ${result.note}` : ''}`);
      }
    }
    for (const line of skipped) console.log(line);
    console.log(`${count.passed} passed, ${count.failed + errors.length} failed, ${count.skipped} skipped`);
  }
}

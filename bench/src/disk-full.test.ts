import { closeSync, openSync, rmSync, writeSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { demo, demoData, expectOneError, quickRecipe } from './testing.js';

describe('a disk that is too small for the snapshot', () => {
  const root = demoData('64m');

  it('is noticed before the VM boots', async () => {
    const run = await demo(root, ['--n', '2']).ended;
    expect(run.code).toBe(1);
    expectOneError(run, /the snapshot needs \d+ MiB, \d+ MiB are free/);
    expect(run.stderr).not.toContain('  boot ');
  });
});

describe('a disk that somebody else fills meanwhile', () => {
  const root = demoData('600m');
  const quick = quickRecipe(root);

  it.each(['  boot ', '  warm-up ', '  save', '  zygote '])('at "%s" is said to be full', async (moment) => {
    const { prints, ended } = demo(root, ['--n', '2', '--recipe', quick]);
    await prints(moment);
    fill(`${root}/filler`);
    const run = await ended;
    rmSync(`${root}/filler`);
    expect(run.code).toBe(1);
    expectOneError(run, /disk (is full|filled up)/);
  });
});

function fill(path: string): void {
  const file = openSync(path, 'w');
  const block = Buffer.alloc(64 << 10, 1);
  try {
    for (;;) writeSync(file, block);
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code !== 'ENOSPC') throw thrown;
  } finally {
    closeSync(file);
  }
}

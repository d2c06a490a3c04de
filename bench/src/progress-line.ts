import type { Progress } from '@forkd/images';

export type { Progress };

let last = '';

/** One line per step for people who wait; on a terminal the details of a step overwrite each other. */
export function showProgress({ step, detail, fraction }: Progress): void {
  const percent = fraction === undefined ? '' : ` ${Math.round(fraction * 100)}%`;
  const text = `  ${step.padEnd(10)} ${detail ?? ''}${percent}`.trimEnd();
  if (text === last) return;
  const again = last.slice(0, 12) === text.slice(0, 12);
  if (process.stderr.isTTY) process.stderr.write(`${again ? '\r\u001b[K' : last ? '\n' : ''}${text}`);
  else if (!again || fraction === undefined) process.stderr.write(`${text}\n`);
  last = text;
}

/** A bar that moves in place on a terminal, and speaks at each quarter elsewhere. */
export function showBar(label: string, done: number, total: number): void {
  if (process.stderr.isTTY) {
    const filled = Math.round((40 * done) / total);
    process.stderr.write(
      `\r\u001b[K  ${label.padEnd(10)} ${'█'.repeat(filled)}${'░'.repeat(40 - filled)} ${done}/${total}`,
    );
    if (done === total) endProgress();
  } else if (done === total || done % Math.ceil(total / 4) === 0)
    process.stderr.write(`  ${label.padEnd(10)} ${done}/${total}\n`);
}

export function endProgress(): void {
  if (process.stderr.isTTY) process.stderr.write('\n');
  last = '';
}

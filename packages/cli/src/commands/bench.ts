import { asForkdError, ForkdError } from '@forkd/protocol';
import type { Forkd } from '@forkd/sdk';
import { command, option, toggle } from '../command.js';
import type { Context } from '../context.js';
import { ms, percentile } from '../units.js';
import { count, tag } from '../values.js';

export const bench = command({
  name: 'bench',
  group: 'daemon',
  summary: 'Measure spawn, ping, exec, eval, branch and kill through the daemon',
  flags: {
    tag: option('TAG', tag, 'Snapshot; else the newest that is ready', { complete: 'tags' }),
    n: option('COUNT', count(1, 1000), 'Sandboxes of the large spawn', { short: 'n', fallback: 5 }),
    repeat: option('COUNT', count(1, 1000), 'How often everything is done', { short: 'r', fallback: 5 }),
    'per-child-netns': toggle('A network namespace for each sandbox (always so)'),
  },
  async run(context, { flags }) {
    const { output } = context;
    const daemon = await context.daemon();
    const name = flags.tag ?? (await newest(daemon));
    const samples = new Map<string, number[]>();
    const notes: string[] = [];
    for (let round = 0; round < flags.repeat; round++) {
      output.progress(`round ${round + 1} of ${flags.repeat}`);
      await measure(context, daemon, name, flags.n, samples, notes);
    }
    output.endProgress();
    const steps = [...samples].map(([step, values]) => ({
      step,
      samples: values.length,
      p50_ms: rounded(percentile(values, 0.5)),
      p90_ms: rounded(percentile(values, 0.9)),
      p99_ms: rounded(percentile(values, 0.99)),
      max_ms: rounded(Math.max(...values)),
    }));
    await output.result({ tag: name, n: flags.n, repeat: flags.repeat, steps, notes }, () =>
      [
        output.table(
          ['STEP', 'P50', 'P90', 'P99', 'MAX'],
          steps.map(({ step, p50_ms, p90_ms, p99_ms, max_ms }) => [
            step,
            ms(p50_ms),
            ms(p90_ms),
            ms(p99_ms),
            ms(max_ms),
          ]),
        ),
        ...notes,
      ].join('\n'),
    );
  },
});

/** Everything once; whatever happens, nothing of it stays. */
async function measure(
  { signal }: Context,
  daemon: Forkd,
  name: string,
  n: number,
  samples: Map<string, number[]>,
  notes: string[],
): Promise<void> {
  const timed = async <T>(step: string, work: () => Promise<T>): Promise<T> => {
    const begin = performance.now();
    const value = await work();
    samples.set(step, [...(samples.get(step) ?? []), performance.now() - begin]);
    return value;
  };
  const branch = `bench-${process.pid}-${Date.now()}`;
  const [one] = await timed('spawn 1', () => daemon.sandboxes.spawn({ snapshot_tag: name, signal }));
  const sandboxes = [one!];
  let hasBranch = false;
  try {
    await timed('ping', () => one!.ping({ signal }));
    await timed('exec', () => one!.exec(['sh', '-c', 'echo bench'], { signal }));
    await optional('eval', () => one!.eval('1', { signal }));
    await timed('branch', () => one!.branch({ tag: branch, mode: 'diff', signal }));
    hasBranch = true;
    sandboxes.push(...(await timed(`spawn ${n}`, () => daemon.sandboxes.spawn({ snapshot_tag: branch, n, signal }))));
  } finally {
    await timed(`kill ${sandboxes.length}`, () => Promise.allSettled(sandboxes.map((sandbox) => sandbox.kill())));
    if (hasBranch) await daemon.snapshots.remove(branch);
  }

  /** A step this snapshot may not have. */
  async function optional(step: string, work: () => Promise<unknown>): Promise<void> {
    try {
      await timed(step, work);
    } catch (thrown) {
      const { code, message } = asForkdError(thrown);
      if (code !== 'invalid_request') throw thrown;
      const note = `${step}: ${message}`;
      if (!notes.includes(note)) notes.push(note);
    }
  }
}

async function newest(daemon: Forkd): Promise<string> {
  const ready = (await daemon.snapshots.list()).filter(({ status }) => status === 'ready');
  const [first] = ready.sort((a, b) => b.created_at_unix - a.created_at_unix);
  if (first) return first.tag;
  throw new ForkdError('snapshot_not_found', 'there is no snapshot to measure', {
    hint: 'Make one: forkd snapshot --tag numpy --recipe python-numpy',
  });
}

function rounded(value: number): number {
  return Number(value.toFixed(2));
}

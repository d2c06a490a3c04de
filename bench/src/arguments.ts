import { parseArgs } from 'node:util';
import { ForkdError } from '@forkd/protocol';

export interface Arguments {
  n: number;
  recipe: string;
  accel: 'auto' | 'kvm' | 'tcg';
  /** Children started at the same time; 0 leaves it to the controller. */
  width: number;
}

/** What the demo and the benchmarks understand on their command line. */
export function readArguments(argv = process.argv.slice(2)): Arguments {
  let values: Record<string, string | undefined>;
  try {
    const text = { type: 'string' } as const;
    const options = { n: text, recipe: text, accel: text, width: text } as const;
    ({ values } = parseArgs({ args: argv, options }));
  } catch (cause) {
    throw new ForkdError('invalid_request', (cause as Error).message, {
      hint: 'Known: --n COUNT --recipe NAME --accel auto|kvm|tcg --width COUNT; with make: N=… RECIPE=…',
    });
  }
  const accel = values.accel ?? 'auto';
  if (accel !== 'auto' && accel !== 'kvm' && accel !== 'tcg')
    throw new ForkdError('invalid_request', `accel is auto, kvm or tcg, not ${JSON.stringify(accel)}`);
  const n = count('n', values.n ?? '100', 1);
  const width = count('width', values.width ?? '0', 0);
  return { n, recipe: values.recipe ?? 'python-numpy', accel, width };
}

function count(name: string, text: string, least: number): number {
  if (!/^\d{1,4}$/.test(text) || Number(text) < least || Number(text) > 1000)
    throw new ForkdError('invalid_request', `${name} is ${least} to 1000, not ${JSON.stringify(text)}`);
  return Number(text);
}

import { asForkdError } from '@forkd/protocol';
import type { Context } from '../context.js';
import { EXIT_CODES } from '../exit-codes.js';
import { clean } from '../output.js';

/** Does the same to each of several things; one that fails does not keep the others from being done. */
export async function each(
  { output, signal }: Context,
  key: 'id' | 'tag',
  names: readonly string[],
  act: (name: string) => Promise<unknown>,
): Promise<number> {
  const results: Record<string, unknown>[] = [];
  let exitCode = 0;
  for (const name of names) {
    if (signal.aborted) break;
    try {
      await act(name);
      results.push({ [key]: name, ok: true });
      if (!output.isJson) await output.print(output.good(name));
    } catch (thrown) {
      const { code, message, hint, details } = asForkdError(thrown);
      results.push({ [key]: name, ok: false, error: { error: message, code, hint, ...details } });
      exitCode = EXIT_CODES[code];
      if (!output.isJson) output.say(`${output.bad(`${name}: ${clean(message)}`)}\nhint: ${clean(hint)}`);
    }
  }
  if (output.isJson) await output.result(results, () => '');
  return exitCode;
}

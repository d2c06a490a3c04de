import { usage } from '../usage.js';
import { sandboxId } from '../values.js';

/** The sandbox a verb is about, and the arguments that are left: `--child ID`, or the first argument. */
export function pickSandbox(child: string | undefined, operands: readonly string[]): { id: string; left: string[] } {
  if (child !== undefined) return { id: child, left: [...operands] };
  const [id, ...left] = operands;
  if (id === undefined) throw usage('the ID of a sandbox is missing', 'Find it with `forkd ls`.');
  return { id: sandboxId(id), left };
}

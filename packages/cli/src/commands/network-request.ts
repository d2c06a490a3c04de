import { readFileSync } from 'node:fs';
import type { NetworkOptions } from '@forkd/sdk';
import type { Values } from '../command.js';
import { usage } from '../usage.js';
import type { NETWORK } from './flags.js';

/** What the flags ask for; `undefined`: nothing. */
export function networkRequest(flags: Values<typeof NETWORK>): NetworkOptions | undefined {
  const { preset, allow, deny, rules } = flags;
  if (preset === undefined && allow.length === 0 && deny.length === 0 && rules === undefined) return undefined;
  return { preset: preset ?? 'none', allow, deny, ...(rules !== undefined && { rules: readRules(rules) }) };
}

/** From a file, so that no secret is on a command line, which others can see. */
function readRules(file: string): NonNullable<NetworkOptions['rules']> {
  try {
    return JSON.parse(readFileSync(file === '-' ? 0 : file, 'utf8'));
  } catch (thrown) {
    // What it says may repeat what is in the file.
    const isJson = thrown instanceof SyntaxError;
    throw usage(
      `--rules: ${isJson ? 'not JSON' : 'cannot read the file'}`,
      'For example: {"api.example.com": {"headers": {"authorization": "Bearer …"}}}',
    );
  }
}

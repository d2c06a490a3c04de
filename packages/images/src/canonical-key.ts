import { createHash } from 'node:crypto';

/** Part of every key: raise it when a change to a builder makes the images of before wrong. */
const BUILDER_VERSION = 1;

/** Names the result of a build by what goes into it. Equal inputs give equal keys whatever the order of their fields. */
export function canonicalKey(kind: string, inputs: unknown): string {
  return createHash('sha256')
    .update(JSON.stringify(canonical({ kind, inputs, builder: BUILDER_VERSION })))
    .digest('hex');
}

function canonical(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(canonical);
  if (value === null || typeof value !== 'object') return value;
  return Object.entries(value)
    .filter(([, field]) => field !== undefined)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, field]) => [name, canonical(field)]);
}

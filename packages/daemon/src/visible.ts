import type { Caller } from './caller.js';

/** A user sees and touches what is their own; admins touch everything, readers see everything. */
export function mayTouch({ role, name }: Caller, { owner }: { owner: string }): boolean {
  return role !== 'user' || name === owner;
}

/** For listings: `undefined` where the caller sees those of all owners. */
export function ownerFilter({ role, name }: Caller): string | undefined {
  return role === 'user' ? name : undefined;
}

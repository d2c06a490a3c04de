import { NetworkPolicy } from '@forkd/protocol';

/** A policy as a request would give it. */
export function policy(given: Partial<NetworkPolicy> = {}): NetworkPolicy {
  return NetworkPolicy.parse(given);
}

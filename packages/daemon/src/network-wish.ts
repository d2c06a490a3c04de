import type { NetworkWish } from '@forkd/controller';
import type { NetworkRequest } from '@forkd/protocol';

/** What a request asks for, as the controller takes it. */
export function networkWish(request: NetworkRequest | undefined): NetworkWish | undefined {
  if (!request) return undefined;
  const { rules, widen, ...policy } = request;
  return { policy, rules, widen };
}

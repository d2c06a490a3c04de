import { addressText } from '@forkd/protocol';
import { decideName, type Verdict } from './decide.js';
import type { Names } from './names.js';
import { type Outlet, plainAddress } from './outlet.js';

export interface Destination {
  address: string;
  port: number;
}

/** What a connection or a request says about the host it is for. */
export interface Claim {
  name: string | undefined;
  /** It may be for a host that we cannot see. */
  isHidden: boolean;
}

/** Where it goes: any of these addresses, which were checked. */
export interface Route extends Verdict {
  addresses: string[];
  name: string | undefined;
}

/**
 * Where the connection of a sandbox may go that it has made to `destination`. One to a name that the policy allows goes to an
 * address that we have found for that name, whatever the guest believes it has; all others go to their destination.
 */
export async function findRoute(outlet: Outlet, names: Names, destination: Destination, claim: Claim): Promise<Route> {
  const { port } = destination;
  const address = plainAddress(destination.address);
  const { name } = claim;
  const byName = name === undefined ? undefined : decideName(outlet.policy, name, port);
  if (byName && !byName.allowed) return { ...byName, addresses: [], name };
  if (name !== undefined && (byName || Object.hasOwn(outlet.settings.rules, name)))
    return routeTo(outlet, names, name, address, port);
  const verdict = outlet.decide({ address, port });
  if (verdict.allowed) return { ...verdict, addresses: [address], name };
  // One that says no name may be for a name that it was told to have this address.
  if (name === undefined && !claim.isHidden)
    for (const given of outlet.namesAt(address)) {
      const byGiven = outlet.decide({ address, port, name: given });
      if (byGiven.allowed) return { ...byGiven, addresses: [address], name: given };
    }
  return { ...verdict, addresses: [], name };
}

async function routeTo(outlet: Outlet, names: Names, name: string, wanted: string, port: number): Promise<Route> {
  const found = (await names.all(name)).map(addressText);
  // The one the guest has chosen first, if it is one of them.
  const addresses = [
    ...found.filter((address) => address === wanted),
    ...found.filter((address) => address !== wanted),
  ];
  const judged = addresses.map((address) => ({ address, ...outlet.decide({ address, port, name }) }));
  const allowed = judged.filter((each) => each.allowed);
  const rule = (allowed[0] ?? judged[0])?.rule ?? 'the name has no address';
  return { allowed: allowed.length > 0, rule, addresses: allowed.map(({ address }) => address), name };
}

import { type Address, isInside, isWithin, overlap, type Range, range } from '@forkd/protocol';

/**
 * `public`: anybody's. `private`: of the network the host is in. `local`: of the host or its link, or nobody's.
 * `metadata`: hands out the host's own credentials.
 */
export type Kind = 'public' | 'private' | 'local' | 'metadata';

/** The smallest range that holds an address says its kind; what is in none is public. */
const SPECIAL: { kind: Kind; range: Range }[] = [
  ...of(
    'metadata',
    '169.254.169.254',
    '169.254.170.2',
    '100.100.100.200',
    '168.63.129.16',
    '192.0.0.192',
    'fd00:ec2::254',
  ),
  ...of('private', '10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', '100.64.0.0/10', 'fc00::/7', 'fec0::/10'),
  // This network, loopback, link-local, protocol assignments, benchmarks, multicast, reserved and broadcast.
  ...of('local', '0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '192.0.0.0/24', '198.18.0.0/15', '224.0.0.0/3'),
  // Unspecified and loopback with all that is near them, other forms of NAT64, Teredo, discard, link-local, multicast.
  ...of('local', '::/8', '64:ff9b:1::/48', '2001::/32', '100::/64', 'fe80::/10', 'ff00::/8'),
];

export function kindOf(address: Address): Kind {
  return SPECIAL.find(({ range }) => isWithin(address, range))?.kind ?? 'public';
}

/** Whether an allowed range is about this kind of address: what is not public must be named by a range of nothing else. */
export function opens(allowed: Range, address: Address): boolean {
  const special = SPECIAL.find(({ range }) => isWithin(address, range));
  return special === undefined || isInside(allowed, special.range);
}

/** Whether some address of it is of one of these kinds. */
export function reaches(some: Range, kinds: Kind[]): boolean {
  return SPECIAL.some(({ kind, range }) => kinds.includes(kind) && overlap(some, range));
}

/** The special ranges it is all inside of: those it opens. */
export function openedBy(some: Range): Range[] {
  return SPECIAL.flatMap(({ range }) => (isInside(some, range) ? [range] : []));
}

function of(kind: Kind, ...texts: string[]): { kind: Kind; range: Range }[] {
  return texts.map((text) => ({ kind, range: range(text) }));
}

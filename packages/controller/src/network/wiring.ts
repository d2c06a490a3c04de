import { isIPv4, isIPv6 } from 'node:net';
import { ForkdError } from '@forkd/protocol';
import { z } from 'zod';

const Mac = z.string().regex(/^[0-9a-f]{2}(:[0-9a-f]{2}){5}$/);
const Address4 = z.string().refine(isIPv4);
const Address6 = z.string().refine(isIPv6);

/** The addresses on the wire between a guest and its gateway: part of a snapshot, because its guest has them in memory. */
export const Wiring = z.object({
  /** `user`: the VMM plays the gateway, and nothing is behind it. Its device differs from one with a tap. */
  backend: z.enum(['tap', 'user']).default('tap'),
  guestMac: Mac,
  gatewayMac: Mac,
  guest4: Address4,
  gateway4: Address4,
  guest6: Address6,
  gateway6: Address6,
});
export type Wiring = z.infer<typeof Wiring>;

/** Where no way leads out of, any address will do; this one is rarely somebody's own, which a guest might want to reach. */
export const DEFAULT_RANGE = '10.107.0.0/30';

const PRIVATE = [
  { from: 0x0a000000, bits: 8 },
  { from: 0xac100000, bits: 12 },
  { from: 0xc0a80000, bits: 16 },
  { from: 0x64400000, bits: 10 },
];

/** The wiring for new snapshots: the two addresses of a private /30, and always the same of IPv6. */
export function wiringOf(range: string, backend: Wiring['backend'] = 'tap'): Wiring {
  const [address = '', length] = range.split('/');
  const first = isIPv4(address) ? address.split('.').reduce((sum, byte) => sum * 256 + Number(byte), 0) : -1;
  const isPrivate = PRIVATE.some(({ from, bits }) => first >= from && first < from + 2 ** (32 - bits));
  if (length !== '30' || first % 4 !== 0 || !isPrivate)
    throw new ForkdError('invalid_request', `${JSON.stringify(range)} is not a private range of four addresses`, {
      hint: `Give the first address and the length, such as ${DEFAULT_RANGE}.`,
    });
  const at = (offset: number): string => [24, 16, 8, 0].map((shift) => ((first + offset) >>> shift) & 255).join('.');
  return {
    backend,
    guestMac: '02:66:6b:64:00:02',
    gatewayMac: '02:66:6b:64:00:01',
    guest4: at(2),
    gateway4: at(1),
    guest6: 'fd66:6b64:6e65::2',
    gateway6: 'fd66:6b64:6e65::1',
  };
}

/** How the guest's agent learns of it. */
export function kernelParameter({ guest4, gateway4, guest6, gateway6 }: Wiring): string {
  return `forkd.network=${guest4},${gateway4},${guest6},${gateway6}`;
}

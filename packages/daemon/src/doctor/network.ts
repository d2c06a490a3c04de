import { access, constants, readdir, readFile } from 'node:fs/promises';
import { DEFAULT_RANGE, wiringOf } from '@forkd/controller';
import { closeSockets } from '@forkd/host';
import { asForkdError } from '@forkd/protocol';
import { type Check, type Host, type Outcome, pass, skip, warn } from './check.js';

/** Without it guests have no network; all else works. */
const WITHOUT = 'guests have no network (--network none)';

export const networkChecks: Check[] = [
  { name: 'ip_forward', run: forwarding },
  { name: 'tun', run: tun },
  { name: 'tap device', run: tap },
  { name: 'network namespaces', run: namespaces },
  { name: 'per-child netns', run: prepared },
];

async function forwarding(): Promise<Outcome> {
  const value = (await readFile('/proc/sys/net/ipv4/ip_forward', 'utf8')).trim();
  if (value === '1') return pass('on; not needed: nothing of a guest is routed');
  return skip('off; not needed: nothing of a guest is routed', 'Nothing to do.');
}

async function tun(): Promise<Outcome> {
  try {
    await access('/dev/net/tun', constants.R_OK | constants.W_OK);
    return pass('/dev/net/tun can be opened');
  } catch {
    return warn(
      `/dev/net/tun is absent or cannot be opened: ${WITHOUT}`,
      'modprobe tun; in a container: --device /dev/net/tun',
    );
  }
}

async function tap(): Promise<Outcome> {
  const names = (await readdir('/sys/class/net').catch(() => [])).filter((name) => name.startsWith('forkd-'));
  if (names.length > 0) return pass(names.join(', '));
  return skip('none; not needed: no device has to be prepared on the host', 'Nothing to do.');
}

/** As for every sandbox: a namespace with a tap, addresses, packet filter and sockets. */
async function namespaces({ helper }: Host): Promise<Outcome> {
  try {
    const { number, sockets } = await helper.makeNetwork(wiringOf(DEFAULT_RANGE));
    closeSockets(sockets);
    await helper.dropNetwork(number);
    return pass('one was made, with a tap and a packet filter');
  } catch (thrown) {
    return warn(
      `none can be made (${asForkdError(thrown).message}): ${WITHOUT}`,
      'Run as root; modprobe -a tun nf_tables nft_tproxy; the kernel needs IPv6; in a container: --cap-add SYS_ADMIN,NET_ADMIN',
    );
  }
}

async function prepared(): Promise<Outcome> {
  const names = (await readdir('/run/netns').catch(() => [])).filter((name) => name.startsWith('forkd-'));
  const count = names.length === 0 ? 'none' : `${names.length}`;
  return skip(`${count} prepared; not needed: nothing is prepared per child`, 'Nothing to do.');
}

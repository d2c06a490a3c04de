import { access, constants, readdir, readFile } from 'node:fs/promises';
import { DEFAULT_RANGE, wiringOf } from '@forkd/controller';
import { closeSockets } from '@forkd/host';
import { asForkdError } from '@forkd/protocol';
import { type Check, type Host, type Outcome, pass, skip, warn } from './check.js';

/** Without it all else works. */
const WITHOUT = 'guests reach nothing';

const REPAIR =
  'Run as root; modprobe -a tun nf_tables nft_tproxy; the kernel needs IPv6; in a container: --cap-add SYS_ADMIN,NET_ADMIN';

export const networkChecks: Check[] = [
  { name: 'network', run: mode },
  { name: 'ip_forward', run: forwarding },
  { name: 'tun', run: tun },
  { name: 'tap device', run: tap },
  { name: 'network namespaces', run: namespaces },
  { name: 'per-child netns', run: prepared },
];

/** What `--network auto` makes of new snapshots. */
async function mode(host: Host): Promise<Outcome> {
  const failure = await tryNetwork(host);
  if (failure === undefined) return pass('tap: guests reach what their policies allow');
  const { usable, reason } = await host.userNetwork();
  const kind = usable ? 'user: guests have a device' : `none: guests have no device (${reason})`;
  return warn(`${kind}, and reach nothing: no tap can be made (${failure})`, REPAIR);
}

/** As for every sandbox: a namespace with a tap, addresses, packet filter and sockets. Why it cannot be made. */
async function tryNetwork({ helper }: Host): Promise<string | undefined> {
  try {
    const { number, sockets } = await helper.makeNetwork(wiringOf(DEFAULT_RANGE));
    closeSockets(sockets);
    await helper.dropNetwork(number);
    return undefined;
  } catch (thrown) {
    return asForkdError(thrown).message;
  }
}

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

async function namespaces(host: Host): Promise<Outcome> {
  const failure = await tryNetwork(host);
  if (failure === undefined) return pass('one was made, with a tap and a packet filter');
  return warn(`none can be made (${failure}): ${WITHOUT}`, REPAIR);
}

async function prepared(): Promise<Outcome> {
  const names = (await readdir('/run/netns').catch(() => [])).filter((name) => name.startsWith('forkd-'));
  const count = names.length === 0 ? 'none' : `${names.length}`;
  return skip(`${count} prepared; not needed: nothing is prepared per child`, 'Nothing to do.');
}

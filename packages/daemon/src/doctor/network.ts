import { access, constants, readdir, readFile } from 'node:fs/promises';
import { type Check, type Host, type Outcome, pass, skip, warn } from './check.js';
import { ask } from './program.js';

/** Guests have no network yet, so nothing here is fatal. */
const LATER = 'guests will need it for their network';

export const networkChecks: Check[] = [
  { name: 'ip_forward', run: forwarding },
  { name: 'tun', run: tun },
  { name: 'tap device', run: tap },
  { name: 'network namespaces', run: namespaces },
  { name: 'per-child netns', run: prepared },
  { name: 'nftables', run: nftables },
];

async function forwarding(): Promise<Outcome> {
  const value = (await readFile('/proc/sys/net/ipv4/ip_forward', 'utf8')).trim();
  if (value === '1') return pass('on');
  return skip(`off; not needed yet: ${LATER}`, 'sysctl -w net.ipv4.ip_forward=1');
}

async function tun(): Promise<Outcome> {
  try {
    await access('/dev/net/tun', constants.R_OK | constants.W_OK);
    return pass('/dev/net/tun can be opened');
  } catch {
    return warn(
      `/dev/net/tun is absent or cannot be opened: ${LATER}`,
      'modprobe tun; in a container: --device /dev/net/tun',
    );
  }
}

async function tap(): Promise<Outcome> {
  const names = (await readdir('/sys/class/net').catch(() => [])).filter((name) => name.startsWith('forkd-'));
  if (names.length > 0) return pass(names.join(', '));
  return skip('none; not needed: no device has to be prepared on the host', 'Nothing to do.');
}

async function namespaces({ signal }: Host): Promise<Outcome> {
  const said = await ask('unshare', ['--net', 'true'], signal);
  if (said.ok) return pass('one was made and left');
  return warn(
    `none can be made (${said.reason}): ${LATER}`,
    said.absent ? 'apt-get install util-linux' : 'Run as root; in a container: --cap-add SYS_ADMIN',
  );
}

async function prepared(): Promise<Outcome> {
  const names = (await readdir('/run/netns').catch(() => [])).filter((name) => name.startsWith('forkd-'));
  const count = names.length === 0 ? 'none' : `${names.length}`;
  return skip(`${count} prepared; not needed: nothing is prepared per child`, 'Nothing to do.');
}

async function nftables({ signal }: Host): Promise<Outcome> {
  const said = await ask('nft', ['list', 'tables'], signal);
  if (said.ok) return pass('nft lists its tables');
  return warn(
    said.absent ? `nft is not installed: ${LATER}` : `nft does not work (${said.reason}): ${LATER}`,
    said.absent ? 'apt-get install nftables' : 'Run as root; modprobe nf_tables',
  );
}

import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import type { Socket } from 'node:net';
import { fileURLToPath } from 'node:url';
import type { Datagram } from '@forkd/host';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Sandbox } from '../sandbox.js';
import { close, dataDirectory, openController, plainRecipe, startProgram, until } from '../testing.js';
import { type NetworkMode, Networks } from './networks.js';
import { SPARE } from './spares.js';
import { tapsOf } from './taps.js';
import type { UdpPort } from './udp-port.js';
import type { Uplink } from './uplink.js';
import { DEFAULT_RANGE, wiringOf } from './wiring.js';

const PROGRAM = readFileSync(fileURLToPath(new URL('./guest.fixture.py', import.meta.url)));

/** Says to every connection whose it is and where it wanted to go, at port 7 whatever it hears; questions likewise. */
class Echo implements Uplink {
  readonly seen: string[] = [];
  /** Whose VM is in which place. */
  readonly owners = new Map<string, string>();
  readonly ports = new Map<string, UdpPort>();

  attach(place: string, { tcp, dns, dnsTcp, udp }: Parameters<Uplink['attach']>[1], sandbox = 'nobody'): void {
    this.owners.set(place, sandbox);
    this.ports.set(place, udp);
    const answer = (socket: Socket): void => {
      const { localAddress, localPort } = socket;
      this.seen.push(`${place} ${localAddress} ${localPort}`);
      socket.on('error', () => {});
      if (localPort === 7) socket.pipe(socket);
      else socket.end(`${place} ${localAddress} ${localPort}`);
    };
    tcp.on('connection', answer);
    dnsTcp.on('connection', answer);
    dns.on('message', (question, { port, address }) => dns.send(`${place} ${question}`, port, address));
  }

  detach(place: string): void {
    this.seen.push(`${place} detached`);
  }
}

const uplink = new Echo();
const root = dataDirectory();
const other = dataDirectory();
let controller: Awaited<ReturnType<typeof openController>>;
let children: Sandbox[] = [];

beforeAll(async () => {
  controller = await openController(root, true, { uplink });
  await controller.createSnapshot({ tag: 'wired', recipe: await plainRecipe(), recipeName: 'plain' });
  // Three are forked from a zygote.
  children = await spawn('wired', 3);
}, 120_000);
afterAll(async () => {
  for (const sandbox of controller.sandboxes()) await sandbox.kill();
  await close(controller);
});

async function spawn(tag: string, n: number): Promise<Sandbox[]> {
  const results = await controller.spawn({ tag, n });
  return results.map((result) => {
    if (!result.ok) throw result.error;
    return result.sandbox;
  });
}

async function shell({ guest }: Sandbox, command: string): Promise<string> {
  const { stdout, stderr } = await guest.exec({ args: ['sh', '-c', command] });
  return `${stdout}${stderr}`.trim();
}

/** Each order is answered by a line. Python takes its time to start in an emulated guest. */
async function program({ guest }: Sandbox, ...orders: string[]): Promise<string[]> {
  const { stdout, stderr } = await guest.exec({ args: ['python3', '-', ...orders], stdin: PROGRAM });
  return `${stdout}${stderr}`.trim().split('\n');
}

const GATEWAY4 = '10.107.0.1';
const GATEWAY6 = 'fd66:6b64:6e65::1';

it('a guest has its addresses, its routes and its resolver', async () => {
  const child = children[0]!;
  expect(await shell(child, 'hostname -I')).toBe('10.107.0.2 fd66:6b64:6e65::2');
  expect(await shell(child, 'cat /sys/class/net/eth0/address /sys/class/net/eth0/mtu')).toBe('02:66:6b:64:00:02\n1500');
  expect(await shell(child, 'cat /etc/resolv.conf')).toBe(`nameserver ${GATEWAY4}`);
});

it('a connection to any address and port arrives with that as its local end, of each child at its own sockets', async () => {
  const ask = (child: Sandbox) => program(child, 'tcp 203.0.113.7 4444', 'tcp 2001:db8::7 53');
  const answers = await Promise.all(children.map(ask));
  expect(answers).toEqual(children.map(({ id }) => [`${id} ::ffff:203.0.113.7 4444`, `${id} 2001:db8::7 53`]));
});

it('moves data both ways, more than buffers and segments hold', async () => {
  expect(await program(children[0]!, 'echo 203.0.113.7 16', 'echo 2001:db8::7 16')).toEqual(['same', 'same']);
});

it('names are asked of the gateway; all else that is not TCP gets no answer', async () => {
  const child = children[0]!;
  const gateways = [GATEWAY4, GATEWAY6];
  expect(await program(child, ...gateways.flatMap((to) => [`udp ${to} 53`, `tcp ${to} 53`]))).toEqual([
    ...[`${child.id} question`, `${child.id} ::ffff:${GATEWAY4} 53`],
    ...[`${child.id} question`, `${child.id} ${GATEWAY6} 53`],
  ]);
  const others = ['203.0.113.7 53', '2001:db8::7 53', '203.0.113.7 443', `${GATEWAY4} 123`, `${GATEWAY6} 123`];
  const answers = await program(child, ...others.map((to) => `udp ${to}`));
  expect(answers).toEqual(others.map(() => 'TimeoutError'));
});

it('UDP arrives while somebody takes it, the whole of a flow at one socket, and answers come from where it went', async () => {
  const child = children[1]!;
  const port = uplink.ports.get(child.id)!;
  const threads = (): number => readdirSync(`/proc/${controller.helper.pid}/task`).length;
  const before = threads();
  const seen: string[] = [];
  const flows = new Map<string, NonNullable<Datagram['flow']>>();
  port.take(({ from, to, bytes, flow: begun }: Datagram) => {
    if (begun) flows.set(to.address, begun);
    const { socket, claim } = flows.get(to.address)!;
    const heard = (what: Buffer): void => {
      seen.push(`${to.address} ${what}`);
      socket.send(`${to.address} ${to.port}`, from.port, from.address);
    };
    // What is sent before it is claimed does not come there.
    heard(bytes);
    if (!begun) return;
    socket.on('message', heard);
    claim();
  });
  await until(() => threads() > before, 2_000);
  expect(await program(child, 'talk 203.0.113.7 443 3', 'talk 2001:db8::7 123 3')).toEqual([
    '::ffff:203.0.113.7 443, '.repeat(3).slice(0, -2),
    '2001:db8::7 123, '.repeat(3).slice(0, -2),
  ]);
  expect(seen).toEqual(['::ffff:203.0.113.7', '2001:db8::7'].flatMap((to) => [`${to} 0`, `${to} 1`, `${to} 2`]));
  expect(flows.size).toBe(2);
  port.take(undefined);
  await until(() => threads() === before, 2_000);
  expect(await program(child, 'udp 203.0.113.7 443')).toEqual(['TimeoutError']);
  expect(seen).toHaveLength(6);
  for (const { socket } of flows.values()) socket.close();
});

it('frames with another sender than the guest are dropped', async () => {
  const since = uplink.seen.length;
  const before = await controller.helper.networkDrops(children[2]!.vm);
  const answers = await program(children[2]!, 'frames', 'udp 203.0.113.7 443');
  expect(answers).toEqual(['a SYN, an ARP request', 'TimeoutError']);
  const after = await controller.helper.networkDrops(children[2]!.vm);
  expect(after.spoofed).toBeGreaterThanOrEqual(before.spoofed + 7);
  expect(after.udp).toBeGreaterThan(before.udp);
  expect(uplink.seen.slice(since)).toEqual([]);
  expect(await program(children[2]!, 'tcp 198.51.100.1 80')).toEqual([`${children[2]!.id} ::ffff:198.51.100.1 80`]);
});

it('children of a branch have a network of their own as well, and so has a sandbox that was rolled back', async () => {
  const source = children[0]!;
  await controller.beginBranch(source.id, { tag: 'half-way', mode: 'live', owner: 'local' }).done;
  const [child] = await spawn('half-way', 1);
  const answers = await Promise.all([child!, source].map((of) => program(of, 'tcp 203.0.113.7 80')));
  expect(answers.flat()).toEqual([child!, source].map(({ id }) => `${id} ::ffff:203.0.113.7 80`));
  await child!.kill();

  const { place } = await controller.rollback(source.id, 'half-way');
  children[0] = controller.sandbox(source.id);
  expect(await program(children[0], 'tcp 203.0.113.7 80')).toEqual([`${place} ::ffff:203.0.113.7 80`]);
  const zygotes = [...uplink.owners].filter(([of]) => of.startsWith('zygote-')).map(([, owner]) => owner);
  expect([uplink.owners.get(place), new Set(zygotes)]).toEqual([source.id, new Set(['nobody'])]);
}, 30_000);

it('while no program runs connections are refused; the next one answers the guests of the one before', async () => {
  const { id, guest } = children[0]!;
  const { place } = controller.record(id);
  await guest.exec({ args: ['sh', '-c', 'cat >/tmp/program.py'], stdin: PROGRAM });
  await guest.exec({ args: ['sh', '-c', 'setsid python3 /tmp/program.py "refused 203.0.113.7 80" >/tmp/why 2>&1 &'] });
  const since = uplink.seen.length;
  await until(() => uplink.seen.length > since, 10_000);
  await close(controller);
  await new Promise((resolve) => setTimeout(resolve, 500));

  // One that is killed has adopted those of the first, and started others.
  const { child, born } = await startProgram(root, 'wired', true);
  child.kill('SIGKILL');
  await once(child, 'exit');
  controller = await openController(root, true, { uplink });
  expect(controller.sandboxes()).toHaveLength(3 + born.length);
  const adopted = [controller.sandbox(id), controller.sandbox(born[0]!.id)];
  expect(await shell(adopted[0]!, 'cat /tmp/why')).toBe('refused');
  const answers = await Promise.all(adopted.map((of) => program(of, 'tcp 203.0.113.7 80')));
  expect(answers.flat()).toEqual([place, born[0]!.id].map((of) => `${of} ::ffff:203.0.113.7 80`));
}, 60_000);

it('nothing is left of the network of one that ended', async () => {
  const [child] = await spawn('wired', 1);
  await child!.kill();
  await until(() => uplink.seen.at(-1) === `${child!.id} detached`, 1000);
  for (const { vm } of controller.sandboxes()) expect(tapsOf(vm.pid)).toBe(1);
  await until(() => tapsOf(controller.helper.pid!) === SPARE, 5000);
});

it('without network there is no device, also where there could be one; snapshots that have one are refused', async () => {
  let own = await openController(other, false, { mode: 'none' });
  await own.createSnapshot({ tag: 'dumb', recipe: await plainRecipe(), recipeName: 'plain' });
  await close(own);
  own = await openController(other);
  const [result] = await own.spawn({ tag: 'dumb', n: 1 });
  expect(result!.ok && (await shell(result!.sandbox, 'ls /sys/class/net'))).toBe('lo');
  expect(tapsOf(own.helper.pid!)).toBe(0);
  const none = new Networks(own.helper, own.engine, '/', { mode: 'none' });
  const start = () => Promise.reject(new Error('not to be called'));
  const user = new Networks(own.helper, own.engine, '/', { mode: 'user' });
  for (const networks of [none, user])
    await expect(
      networks.connect({ directory: '/nowhere', wiring: wiringOf(DEFAULT_RANGE) }, start),
    ).rejects.toMatchObject({ code: 'host_unfit' });
  await close(own);
}, 60_000);

it('where no tap can be made, new snapshots have a closed network, or none, unless a tap is asked for', async () => {
  const own = await openController(other);
  const failing = Object.assign(Object.create(own.helper), { makeNetwork: () => Promise.reject(new Error('no tun')) });
  const without = { userNetwork: async () => ({ usable: false, reason: 'it has none' }) };
  const made = (mode: NetworkMode, engine: ConstructorParameters<typeof Networks>[1] = own.engine) =>
    new Networks(failing, engine, '/', { mode }).wiring();
  expect(await made('auto')).toEqual({ ...wiringOf(DEFAULT_RANGE), backend: 'user' });
  expect(await made('auto', without)).toBe(null);
  for (const refused of [made('tap'), made('user', without)])
    await expect(refused).rejects.toMatchObject({ code: 'host_unfit' });
  await close(own);
});

it('a range that is not four private addresses is refused', () => {
  expect(wiringOf('192.168.4.8/30')).toMatchObject({ guest4: '192.168.4.10', gateway4: '192.168.4.9' });
  for (const range of ['10.107.0.0', '10.107.0.0/24', '10.107.0.1/30', '8.8.8.0/30', 'fd00::/30', '300.0.0.0/30', ''])
    expect(() => wiringOf(range)).toThrow('is not a private range of four addresses');
});

import { once } from 'node:events';
import { afterAll, expect, it } from 'vitest';
import { HostHelper } from './host-helper.js';
import { closeSockets, type Wiring } from './network.js';
import { spawnSpec, temporaryDirectory } from './testing.js';

// What passes in a network is tested with guests, in the controller; here is who has it.
const root = temporaryDirectory();
const helper = HostHelper.start();
afterAll(() => helper[Symbol.asyncDispose]());

const WIRING: Wiring = {
  guestMac: '02:66:6b:64:00:02',
  gatewayMac: '02:66:6b:64:00:01',
  guest4: '10.107.0.2',
  gateway4: '10.107.0.1',
  guest6: 'fd66:6b64:6e65::2',
  gateway6: 'fd66:6b64:6e65::1',
};

it('sockets listen in a namespace of their own, as many times as one likes', async () => {
  const networks = await Promise.all(Array.from({ length: 20 }, () => helper.makeNetwork(WIRING)));
  expect(new Set(networks.map(({ number }) => number)).size).toBe(20);
  for (const { number, sockets } of networks) {
    expect(sockets.tcp.address()).toMatchObject({ address: '::', port: 15001 });
    expect(sockets.dns.address()).toMatchObject({ address: '::', port: 53 });
    expect(sockets.dnsTcp.address()).toMatchObject({ address: '::', port: 53 });
    closeSockets(sockets);
    await helper.dropNetwork(number);
  }
});

it('a process gets the tap of a network, which nobody else can have then', async () => {
  const { number, sockets } = await helper.makeNetwork(WIRING);
  const spec = { ...spawnSpec(`${root}/log`, ['sh', '-c', 'cat /proc/self/fdinfo/{fd:tap}']), network: number };
  const process = await helper.spawn(spec);
  expect(await process.exited).toEqual({ code: 0, signal: null });
  await expect(helper.spawn(spec)).rejects.toThrow(`there is no network ${number}`);
  closeSockets(sockets);
});

it('through the tap of a process its sockets are opened again; of one without there are none', async () => {
  const { number, sockets } = await helper.makeNetwork(WIRING);
  const process = await helper.spawn({ ...spawnSpec(`${root}/log`, ['sleep', '60']), network: number });
  // Two cannot have the same address.
  await expect(helper.openNetwork(process)).rejects.toThrow('in use');
  closeSockets(sockets);
  await once(sockets.tcp, 'close');
  const again = await helper.openNetwork(process);
  expect(again.tcp.address()).toMatchObject({ port: 15001 });
  closeSockets(again);

  const other = await helper.spawn(spawnSpec(`${root}/log`, ['sleep', '60']));
  await expect(helper.openNetwork(other)).rejects.toThrow('enter the network');
  const recycled = { pid: process.pid, startTime: process.startTime + 1 };
  await expect(helper.openNetwork(recycled)).rejects.toMatchObject({ code: 'vmm_exited' });
  await Promise.all([process.kill(), other.kill()]);
});

it('what is no wiring is refused', async () => {
  for (const bad of [{ guest4: 'fd00::1' }, { guest6: '10.0.0.1' }, { guestMac: '02:66' }, { gatewayMac: 'what' }])
    await expect(helper.makeNetwork({ ...WIRING, ...bad })).rejects.toThrow();
});

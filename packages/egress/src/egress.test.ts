import { createSocket } from 'node:dgram';
import { mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { afterAll, expect, it } from 'vitest';
import { Authority } from './authority.js';
import { Egress } from './egress.js';
import { policy } from './testing.js';

const directory = mkdtempSync(`${tmpdir()}/forkd-egress-`);
const host = await listening(createServer((socket) => void socket.on('error', () => {}).resume()));
const most = new Map([['ann', 3]]);
const egress = new Egress({
  authority: new Authority(directory),
  lookUp: async () => [],
  settingsOf: (id) => ({ policy: policy({ allow: ['127.0.0.1'] }), rules: {}, owner: id.split(' ')[0]! }),
  mostOf: (owner) => most.get(owner),
  own: () => new Set(),
  destinationOf: () => ({ address: '127.0.0.1', port: portOf(host) }),
});
const servers = [host];

afterAll(() => {
  egress.close();
  for (const server of servers) server.close();
  rmSync(directory, { recursive: true });
});

async function listening(server: Server): Promise<Server> {
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  return server;
}

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

async function sandbox(id: string): Promise<() => Promise<Socket | 'cut'>> {
  const tcp = await listening(createServer());
  servers.push(tcp);
  egress.attach(id, { tcp, dns: createSocket('udp4'), dnsTcp: createServer() });
  return async () => {
    const before = egress.report(id).counters;
    const socket = connect(portOf(tcp), '127.0.0.1').on('error', () => {});
    socket.write('\0');
    const decided = () => {
      const { allowed, denied } = egress.report(id).counters;
      return [allowed - before.allowed, denied - before.denied];
    };
    await expect.poll(decided).toSatisfy(([allowed, denied]) => allowed + denied === 1);
    return decided()[0] === 1 ? socket : 'cut';
  };
}

it('all sandboxes of an owner share a limit on connections, which may change, and others do not', async () => {
  const [one, other, stranger] = [await sandbox('ann 1'), await sandbox('ann 2'), await sandbox('bob 1')];
  const open = [await one(), await one(), await other()];
  expect(open).not.toContain('cut');
  expect([await one(), await other()]).toEqual(['cut', 'cut']);
  expect(egress.report('ann 2').decisions.at(-1)).toMatchObject({
    allowed: false,
    rule: 'too many connections of ann',
  });
  expect(await stranger()).not.toBe('cut');

  (open[0] as Socket).destroy();
  await expect.poll(() => egress.report('ann 1').counters.open).toBe(1);
  expect(await other()).not.toBe('cut');
  most.set('ann', 4);
  expect(await one()).not.toBe('cut');
});

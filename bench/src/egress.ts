import { createSocket } from 'node:dgram';
import { mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { Authority, Egress } from '@forkd/egress';
import { NetworkPolicy } from '@forkd/protocol';
import { percentile, rounded } from './statistics.js';

/** As many as a sandbox may have. */
const CONNECTIONS = 500;
const ROUNDS = 5;
const MIB = 512;
const OPEN = NetworkPolicy.parse({ allow: ['127.0.0.0/8'] });
const CLOSED = NetworkPolicy.parse({});

const directory = mkdtempSync(`${tmpdir()}/forkd-bench-egress-`);
const sink = createServer((socket) => void socket.on('error', () => {}).resume());
const [tcp, dnsTcp] = [createServer(), createServer()];
const dns = createSocket('udp4');
let policy = OPEN;
const egress = new Egress({
  authority: new Authority(directory),
  lookUp: async () => [],
  settingsOf: () => ({ policy, rules: {} }),
  own: () => new Set(),
  destinationOf: () => ({ address: '127.0.0.1', port: portOf(sink) }),
});

try {
  for (const server of [sink, tcp]) await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  egress.attach('bench', { tcp, dns, dnsTcp });
  const [changes, cuts]: [number[], number[]] = [[], []];
  for (let round = 0; round < ROUNDS; round++) {
    const { changed, cut } = await cutAll();
    changes.push(changed);
    cuts.push(cut);
  }
  const [plain, proxied] = [await throughput(portOf(sink)), await throughput(portOf(tcp))];
  console.log(
    JSON.stringify({
      connections: CONNECTIONS,
      change_p50_ms: rounded(percentile(changes, 0.5)),
      change_max_ms: rounded(Math.max(...changes)),
      until_all_clients_saw_it_p50_ms: rounded(percentile(cuts, 0.5)),
      until_all_clients_saw_it_max_ms: rounded(Math.max(...cuts)),
      plain_mib_per_s: Math.round(plain),
      proxied_mib_per_s: Math.round(proxied),
    }),
  );
} finally {
  egress.close();
  for (const server of [sink, tcp]) server.close();
  dns.close();
  rmSync(directory, { recursive: true, force: true });
}

/** From the change of a policy until nothing passes any more, and until every client, all in this process, has seen its connection end. */
async function cutAll(): Promise<{ changed: number; cut: number }> {
  use(OPEN);
  const sockets: Socket[] = [];
  const before = egress.report('bench').counters.allowed;
  while (sockets.length < CONNECTIONS) {
    sockets.push(await opened(portOf(tcp)));
    while (egress.report('bench').counters.allowed < before + sockets.length)
      await new Promise((done) => setTimeout(done, 1));
  }
  const ended = sockets.map((socket) => new Promise((done) => socket.once('close', done)));
  const since = performance.now();
  use(CLOSED);
  const changed = performance.now() - since;
  await Promise.all(ended);
  const cut = performance.now() - since;
  use(OPEN);
  return { changed, cut };
}

async function throughput(port: number): Promise<number> {
  const socket = await opened(port);
  const chunk = Buffer.alloc(1 << 20);
  const since = performance.now();
  for (let sent = 0; sent < MIB; sent++)
    if (!socket.write(chunk)) await new Promise((done) => socket.once('drain', done));
  await new Promise<void>((done) => socket.once('close', () => done()).end());
  return MIB / ((performance.now() - since) / 1000);
}

/** With its first byte sent: one that is no beginning of anything known. */
async function opened(port: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1').on('error', () => {});
  socket.resume().write('\0');
  await new Promise((done) => socket.once('connect', done));
  return socket;
}

function use(next: NetworkPolicy): void {
  policy = next;
  egress.change('bench', { policy, rules: {} });
}

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

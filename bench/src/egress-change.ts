import { createSocket } from 'node:dgram';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { type Authority, Egress } from '@forkd/egress';
import { NetworkPolicy } from '@forkd/protocol';

/** As many as a sandbox may have. */
export const CONNECTIONS = 500;
const ROUNDS = 7;
const OPEN = NetworkPolicy.parse({ allow: ['127.0.0.0/8'] });
const CLOSED = NetworkPolicy.parse({});

/** How long it takes until nothing passes any more, and until every client, all in this process, has seen its connection end. */
export async function policyChanges(authority: Authority): Promise<{ changed: number[]; cut: number[] }> {
  const sink = createServer((socket) => void socket.on('error', () => {}).resume());
  const [tcp, dnsTcp] = [createServer(), createServer()];
  const dns = createSocket('udp4');
  const egress = new Egress({
    authority,
    lookUp: async () => [],
    settingsOf: () => ({ policy: OPEN, rules: {} }),
    own: () => new Set(),
    destinationOf: () => ({ address: '127.0.0.1', port: portOf(sink) }),
  });
  try {
    for (const server of [sink, tcp]) await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
    egress.attach('bench', { tcp, dns, dnsTcp });
    const times = { changed: [] as number[], cut: [] as number[] };
    for (let round = 0; round < ROUNDS; round++) {
      const { changed, cut } = await cutAll(egress, portOf(tcp));
      times.changed.push(changed);
      times.cut.push(cut);
    }
    return times;
  } finally {
    egress.close();
    for (const server of [sink, tcp]) server.close();
    dns.close();
  }
}

async function cutAll(egress: Egress, port: number): Promise<{ changed: number; cut: number }> {
  const use = (policy: NetworkPolicy): void => egress.change('bench', { policy, rules: {} });
  use(OPEN);
  const sockets: Socket[] = [];
  const before = egress.report('bench').counters.allowed;
  while (sockets.length < CONNECTIONS) {
    sockets.push(await opened(port));
    while (egress.report('bench').counters.allowed < before + sockets.length)
      await new Promise((done) => setTimeout(done, 1));
  }
  const ended = sockets.map((socket) => new Promise((done) => socket.once('close', done)));
  const since = performance.now();
  use(CLOSED);
  const changed = performance.now() - since;
  await Promise.all(ended);
  return { changed, cut: performance.now() - since };
}

/** With its first byte sent: one that is no beginning of anything known. */
async function opened(port: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1').on('error', () => {});
  socket.resume().write('\0');
  await new Promise((done) => socket.once('connect', done));
  return socket;
}

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

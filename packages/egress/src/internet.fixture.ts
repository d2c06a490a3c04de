import { createSocket } from 'node:dgram';
import { mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import type { EgressRules, NetworkDecision, NetworkPolicy } from '@forkd/protocol';
import { Authority } from './authority.js';
import { Egress } from './egress.js';
import { policy, question, readAnswer } from './testing.js';

/**
 * Hosts at public addresses that exist only here: each is a listener on loopback. What a guest connects to is told apart by
 * the address of 127.0.0.0/8 at which it reaches the proxy.
 */
export class FakeInternet {
  readonly names = new Map<string, string[]>();
  readonly dialled: string[] = [];
  readonly denied: NetworkDecision[] = [];
  readonly directory = mkdtempSync(`${tmpdir()}/forkd-egress-`);
  /** Of the hosts out there. */
  readonly world = new Authority(`${this.directory}/world`);
  /** Of the host of the sandboxes. */
  readonly ours = new Authority(`${this.directory}/ours`);
  readonly egress: Egress;
  readonly #hosts = new Map<string, number>();
  readonly #destinations: string[] = [];
  readonly #tcp = createServer();
  readonly #dns = createSocket('udp4');
  readonly #dnsTcp = createServer();
  readonly #servers: Server[] = [];
  readonly #clients = new Set<Socket>();
  settings: { policy: NetworkPolicy; rules: EgressRules } = { policy: policy(), rules: {} };

  constructor() {
    this.egress = new Egress({
      authority: this.ours,
      roots: [this.world.certificate],
      lookUp: async (name, family) => {
        const found = this.names.get(name);
        if (!found) throw Object.assign(new Error(), { code: 'ENOTFOUND' });
        return found.filter((a) => a.includes(':') === (family === 6)).map((address) => ({ address, ttl: 60 }));
      },
      settingsOf: () => this.settings,
      own: () => new Set(),
      onDenied: (_id, decision) => this.denied.push(decision),
      dial: (address, port) => {
        this.dialled.push(`${address} ${port}`);
        // Port 1 of loopback has no listener.
        return connect({ host: '127.0.0.1', port: this.#hosts.get(`${address} ${port}`) ?? 1, allowHalfOpen: true });
      },
      destinationOf: ({ localAddress }) => {
        const [address = '', port] = this.#destinations[Number(localAddress!.split('.')[3])]!.split(' ');
        return { address, port: Number(port) };
      },
    });
  }

  async start(): Promise<void> {
    await new Promise<void>((done) => this.#tcp.listen(0, '0.0.0.0', done));
    await new Promise<void>((done) => this.#dns.bind(0, '127.0.0.1', done));
    await new Promise<void>((done) => this.#dnsTcp.listen(0, '127.0.0.1', done));
    this.egress.attach('sb', { tcp: this.#tcp, dns: this.#dns, dnsTcp: this.#dnsTcp });
  }

  /** Something that answers at an address. */
  async host(address: string, port: number, server: Server): Promise<void> {
    await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
    this.#servers.push(server);
    this.#hosts.set(`${address} ${port}`, (server.address() as AddressInfo).port);
  }

  allow(given: Partial<NetworkPolicy>, rules: EgressRules = {}): void {
    this.settings = { policy: policy(given), rules };
    this.egress.change('sb', this.settings);
  }

  /** As a guest connects, to what it takes for this address. */
  connect(address: string, port: number): Socket {
    const destination = `${address} ${port}`;
    if (!this.#destinations.includes(destination)) this.#destinations.push(destination);
    const host = `127.7.0.${this.#destinations.indexOf(destination)}`;
    const socket = connect({ host, port: (this.#tcp.address() as AddressInfo).port, allowHalfOpen: true });
    this.#clients.add(socket);
    return socket.on('error', () => {});
  }

  /** Whom a guest believes; as a guest speaks TLS. */
  tls(socket: Socket, servername: string | undefined, ca = this.world.certificate, more = {}): TLSSocket {
    const secure = connectTls({ socket, ca, ...(servername !== undefined && { servername }), ...more });
    return secure.on('error', () => {});
  }

  /** Asks for a name as a guest does. */
  async resolve(name: string, type = 1): Promise<string[]> {
    const client = createSocket('udp4');
    const answer = new Promise<Buffer>((done) => client.once('message', done));
    client.send(question(name, type), this.#dns.address().port, '127.0.0.1');
    const { addresses } = readAnswer(await answer);
    client.close();
    return addresses;
  }

  report() {
    return this.egress.report('sb');
  }

  stop(): void {
    this.egress.close();
    for (const socket of this.#clients) socket.destroy();
    for (const server of [this.#tcp, this.#dnsTcp, ...this.#servers]) server.close();
    this.#dns.close();
    rmSync(this.directory, { recursive: true, force: true });
  }
}

/** All that comes until the connection ends; `cut`: it was not ended in order. */
export async function heard(socket: Socket): Promise<{ text: string; cut: boolean }> {
  let text = '';
  let failed = false;
  socket.on('data', (chunk) => {
    text += chunk;
  });
  await new Promise<void>((done) => {
    socket.once('error', () => {
      failed = true;
    });
    if (socket.destroyed) return done();
    socket.once('end', done).once('close', () => done());
  });
  // What is broken off has no end.
  return { text, cut: failed || !socket.readableEnded };
}

import type { Socket as UdpSocket } from 'node:dgram';
import type { Server, Socket } from 'node:net';
import { addressText } from '@forkd/protocol';
import { Bucket } from './bucket.js';
import { mayResolve } from './decide.js';
import { A, AAAA, type Answer, encodeAnswer, parseQuery, type Query, refusal } from './dns-packet.js';
import type { Names } from './names.js';
import type { Outlet } from './outlet.js';

/** What a sandbox may ask: so many questions at once, then so many a second. */
const QUESTIONS = { rate: 100, burst: 400 };
const MOST_WAITING = 64;
const MOST_CONNECTIONS = 16;
const CONNECTION_MS = 10_000;
/** No answer is believed longer by the guest: a policy that changes is felt. */
const LONGEST_SECS = 60;
/** A flood is worth one line in a while. */
const LOG_MS = 10_000;

/** The resolver of one sandbox. It says what names mean that the policy might let it reach, and nothing else. */
export class Dns {
  readonly #bucket = new Bucket(QUESTIONS.rate, QUESTIONS.burst);
  readonly #connections = new Set<Socket>();
  #waiting = 0;
  #loggedAt = -LOG_MS;

  constructor(
    private readonly outlet: Outlet,
    private readonly names: Names,
    private readonly onFlood: (id: string, dropped: number) => void,
  ) {}

  serve(udp: UdpSocket, tcp: Server): void {
    udp.on('message', (packet, { port, address }) => {
      void this.answer(packet, true).then((reply) => {
        // It may have been closed meanwhile, and who asked may be gone.
        if (reply) send(udp, reply, port, address);
      });
    });
    udp.on('error', () => {});
    tcp.on('connection', (socket) => this.#converse(socket));
  }

  close(): void {
    for (const socket of this.#connections) socket.destroy();
  }

  /** Never fails: what cannot be answered is dropped. */
  async answer(packet: Buffer, isUdp: boolean): Promise<Buffer | undefined> {
    if (this.#waiting >= MOST_WAITING || !this.#bucket.take()) return this.#drop();
    const query = parseQuery(packet);
    if (query === undefined) return undefined;
    if (typeof query === 'string') return refusal(packet, query);
    this.#waiting++;
    try {
      return encodeAnswer(query, await this.#resolve(query), isUdp ? query.room : 0xffff);
    } finally {
      this.#waiting--;
    }
  }

  async #resolve({ name, type }: Query): Promise<Answer> {
    const { outlet } = this;
    const nothing = { addresses: [], ttl: 0 };
    if (name === undefined) return { ...nothing, code: 'refused' };
    const verdict = mayResolve(outlet.policy, name);
    if (!verdict.allowed) {
      outlet.note('dns', verdict, { name });
      return { ...nothing, code: 'refused' };
    }
    // Also what would tell of other names, or how to hide them.
    if (type !== A && type !== AAAA) return { ...nothing, code: 'ok' };
    const { addresses, until, problem } = await this.names.find(name, type === A ? 4 : 6);
    if (problem) return { ...nothing, code: problem };
    // By the policy that holds now: it may be another one.
    const judged = addresses.map((address) => {
      const text = addressText(address);
      return { address, text, verdict: outlet.decide({ address: text, port: undefined, name }) };
    });
    const allowed = judged.filter(({ verdict }) => verdict.allowed).map(({ address }) => address);
    const [first] = judged;
    if (allowed.length === 0 && first) {
      outlet.note('dns', first.verdict, { name, address: first.text });
      return { ...nothing, code: 'refused' };
    }
    outlet.note('dns', verdict, { name });
    for (const address of allowed) outlet.give(address, name);
    const ttl = Math.max(1, Math.min(LONGEST_SECS, Math.ceil((until - Date.now()) / 1000)));
    return { code: 'ok', addresses: allowed, ttl };
  }

  #drop(): undefined {
    this.outlet.counters.dns_dropped++;
    if (performance.now() - this.#loggedAt < LOG_MS) return;
    this.#loggedAt = performance.now();
    this.onFlood(this.outlet.id, this.outlet.counters.dns_dropped);
  }

  /** Questions one after the other, each with its length before it. */
  #converse(socket: Socket): void {
    socket.on('error', () => {});
    if (this.#connections.size >= MOST_CONNECTIONS) return void socket.destroy();
    this.#connections.add(socket);
    socket.once('close', () => this.#connections.delete(socket));
    socket.setTimeout(CONNECTION_MS, () => socket.destroy());
    void this.#questions(socket)
      .catch(() => {})
      .finally(() => socket.destroySoon());
  }

  async #questions(socket: Socket): Promise<void> {
    let buffer = Buffer.alloc(0);
    for await (const chunk of socket) {
      buffer = Buffer.concat([buffer, chunk as Buffer]);
      while (buffer.length >= 2 && buffer.length >= 2 + buffer.readUInt16BE(0)) {
        const length = buffer.readUInt16BE(0);
        const reply = await this.answer(buffer.subarray(2, 2 + length), false);
        buffer = buffer.subarray(2 + length);
        if (!reply) return;
        const prefix = Buffer.alloc(2);
        prefix.writeUInt16BE(reply.length);
        if (!socket.write(Buffer.concat([prefix, reply]))) return;
      }
    }
  }
}

function send(udp: UdpSocket, reply: Buffer, port: number, address: string): void {
  try {
    udp.send(reply, port, address, () => {});
  } catch {
    // Closed.
  }
}

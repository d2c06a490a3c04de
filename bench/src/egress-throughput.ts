import { fork } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { fileURLToPath } from 'node:url';
import type { Sandbox, Uplink } from '@forkd/controller';
import { type Authority, Egress } from '@forkd/egress';
import { NetworkPolicy } from '@forkd/protocol';
import { answer, MIB } from './egress-answer.js';
import { inSession, withParent } from './session.js';
import { percentile, rounded } from './statistics.js';

const ROUNDS = 7;
/** What goes there is answered in this process, without the proxy; to any other port it is the proxy's. */
const PLAIN = 7001;
const PROXIED = 7002;
const POLICY = NetworkPolicy.parse({ preset: 'internet' });
const PEER = fileURLToPath(new URL('egress-peer.js', import.meta.url));

const CLIENT = `
import socket, time
def run(port, way):
    since = time.perf_counter()
    with socket.create_connection(('203.0.113.7', port), 20) as s:
        s.sendall(b'\\0' + way)
        if way == b'u':
            block = bytes(1 << 18)
            for _ in range(${MIB} * 4): s.sendall(block)
            s.shutdown(socket.SHUT_WR)
        into = bytearray(1 << 18)
        while s.recv_into(into): pass
        return ${MIB} / (time.perf_counter() - since)
`;

/** A guest sends and gets data through its tap: to and from this process, and through the proxy in it to and from another one, in turn. */
export async function throughput(authority: Authority) {
  const samples = { sent: newSamples(), received: newSamples() };
  const peer = fork(PEER);
  const [port] = (await once(peer, 'message')) as [number];
  const egress = new Egress({
    authority,
    lookUp: async () => [],
    settingsOf: () => ({ policy: POLICY, rules: {} }),
    dial: () => connect({ host: '127.0.0.1', port, allowHalfOpen: true }),
  });
  try {
    await inSession(
      (session) =>
        withParent(session, async ({ tag }) => {
          const [result] = await session.controller.spawn({ tag, n: 1, signal: session.signal });
          if (!result?.ok) throw result?.error;
          await result.sandbox.guest.eval({ language: 'python', code: CLIENT });
          for (let round = 0; round < ROUNDS; round++)
            for (const [way, each] of Object.entries(samples)) {
              each.plain.push(await run(result.sandbox, PLAIN, way));
              each.proxied.push(await run(result.sandbox, PROXIED, way));
            }
        }),
      { uplink: split(egress) },
    );
  } finally {
    egress.close();
    peer.disconnect();
  }
  return { sent: summary(samples.sent), received: summary(samples.received), samples };
}

interface Samples {
  plain: number[];
  proxied: number[];
}

function newSamples(): Samples {
  return { plain: [], proxied: [] };
}

function summary({ plain, proxied }: Samples) {
  const [bare, through] = [percentile(plain, 0.5), percentile(proxied, 0.5)];
  return { plain_mib_per_s: rounded(bare), proxied_mib_per_s: rounded(through), share: rounded(through / bare, 2) };
}

function split(egress: Egress): Uplink {
  return {
    attach(place, { tcp, dns, dnsTcp }) {
      const rest = createServer();
      egress.attach(place, { tcp: rest, dns, dnsTcp });
      tcp.on('connection', (socket) => (socket.localPort === PLAIN ? answer(socket) : rest.emit('connection', socket)));
    },
    detach: (place) => egress.detach(place),
  };
}

async function run({ guest }: Sandbox, port: number, way: string): Promise<number> {
  const code = `run(${port}, b'${way === 'sent' ? 'u' : 'd'}')`;
  const { result, error } = await guest.eval({ language: 'python', code, timeoutMs: 120_000 });
  if (error) throw new Error(JSON.stringify(error));
  return Number(result);
}

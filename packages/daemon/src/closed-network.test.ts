import { afterAll, beforeAll, expect, it } from 'vitest';
import { TestDaemon } from './testing.js';

const GATEWAYS = ['10.107.0.1', 'fd66:6b64:6e65::1'];
let daemon: TestDaemon;
let id: string;

beforeAll(async () => {
  daemon = await TestDaemon.plain('--network', 'user');
  // Forked from a zygote.
  const { body } = await daemon.say('POST', '/v1/sandboxes', { snapshot_tag: 'plain', n: 3 });
  id = body[0].id;
});
afterAll(() => daemon?.stop());

/** What answers of hosts, of the gateway, of the host behind it (where this daemon listens) and of its resolver. */
async function reached(of: string): Promise<string> {
  const port = new URL(daemon.url).port;
  const everywhere = ['203.0.113.9', '2001:db8::9', ...GATEWAYS, '10.107.0.3'];
  const code = `
import socket, threading
found = []
def tcp(host, port):
    try:
        socket.create_connection((host, port), 3).close()
        found.append(f'tcp {host} {port}')
    except OSError: pass
def udp(host):
    try:
        with socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(3)
            s.sendto(bytes.fromhex('12340100000100000000000003777777076578616d706c6503636f6d0000010001'), (host, 53))
            s.recv(1000)
            found.append(f'udp {host}')
    except OSError: pass
hosts = ${JSON.stringify(everywhere)}
jobs = [threading.Thread(target=tcp, args=(h, p)) for h in hosts for p in (22, 53, 80, ${port})]
jobs += [threading.Thread(target=udp, args=(h,)) for h in hosts]
for job in jobs: job.start()
for job in jobs: job.join()
print(found)
`;
  return daemon.shell(of, 'python3 -', code);
}

it('a guest has the same device as with a tap, and reaches nothing', async () => {
  expect(await daemon.shell(id, 'hostname -I')).toBe('10.107.0.2 fd66:6b64:6e65::2');
  expect(await daemon.shell(id, 'cat /etc/resolv.conf')).toBe(`nameserver ${GATEWAYS[0]}`);
  expect(await reached(id)).toBe('[]');
});

it('it can be branched, and lives on after the daemon was killed', async () => {
  const forked = await daemon.say('POST', `/v1/sandboxes/${id}/fork`, { n: 1 });
  const child = forked.body.results[0].sandbox.id;
  daemon.signal('SIGKILL');
  await daemon.restart();
  for (const of of [id, child]) expect(await daemon.shell(of, 'hostname -I')).toContain('10.107.0.2');
});

it('nobody can open what leads nowhere', async () => {
  const answers = [
    await daemon.say('POST', '/v1/sandboxes', { snapshot_tag: 'plain', network: { preset: 'internet' } }),
    await daemon.say('PUT', `/v1/sandboxes/${id}/network`, { allow: ['203.0.113.9'] }),
  ];
  for (const { status, body } of answers) {
    expect([status, body.code]).toEqual([503, 'host_unfit']);
    expect(body.hint).toContain('doctor');
  }
  const closed = await daemon.say('PUT', `/v1/sandboxes/${id}/network`, { deny: ['203.0.113.9'] });
  expect(closed).toMatchObject({ status: 200, body: { wire: 'user', drops: null } });
});

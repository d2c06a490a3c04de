import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { afterAll, expect, it } from 'vitest';
import { TestDaemon } from './testing.js';

const root = mkdtempSync(`${tmpdir()}/forkd-limits-`);
afterAll(() => rmSync(root, { recursive: true }));

it('each token has a rate of its own, and the health check none', async () => {
  const tokens = `${root}/tokens.toml`;
  const entry = (name: string): string =>
    `[[token]]\nname = "${name}"\nrole = "read"\ntoken = "${name}-0123456789abcdef"\n`;
  writeFileSync(tokens, entry('a') + entry('b'), { mode: 0o600 });
  await using daemon = await TestDaemon.start(['--tokens-file', tokens, '--rate-limit', '2']);
  const status = async (name: string): Promise<number> =>
    (await daemon.call('/version', { token: `${name}-0123456789abcdef` })).status;
  const first = await Promise.all(Array.from({ length: 10 }, () => status('a')));
  expect(first.filter((code) => code === 200).length).toBeLessThanOrEqual(5);
  expect(first.filter((code) => code === 429).length).toBeGreaterThanOrEqual(5);
  const refused = await daemon.call('/version', { token: 'a-0123456789abcdef' });
  expect([refused.status, refused.body.code, refused.headers['retry-after']]).toEqual([429, 'rate_limited', '1']);
  expect(await status('b')).toBe(200);
  for (let i = 0; i < 20; i++) expect((await daemon.call('/healthz')).status).toBe(200);
  await new Promise((done) => setTimeout(done, 1000 * Number(refused.headers['retry-after'])));
  expect(await status('a')).toBe(200);
});

it('more requests at the same time than allowed are told when to come again', async () => {
  await using daemon = await TestDaemon.start(['--max-concurrent', '3']);
  const open = await Promise.all([0, 1, 2].map(() => startRequest(daemon)));
  const refused = await daemon.call('/version');
  expect([refused.status, refused.body.code, refused.headers['retry-after']]).toEqual([503, 'overloaded', '1']);
  expect((await daemon.call('/healthz')).status).toBe(200);
  // Also a client that goes away gives its place back.
  open[0]!.destroy();
  await expect.poll(async () => (await daemon.call('/version')).status).toBe(200);
  for (const socket of open) socket.destroy();
});

/** A request whose body is still on its way. */
async function startRequest(daemon: TestDaemon): Promise<Socket> {
  const { port } = new URL(daemon.url);
  const socket = connect(Number(port), '127.0.0.1');
  socket.write(
    'POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n',
  );
  // 100 Continue: the daemon has taken the request.
  await new Promise((done) => socket.once('data', done));
  return socket;
}

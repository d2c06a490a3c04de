import { connect } from 'node:net';
import { expect, it } from 'vitest';
import { TestDaemon } from './testing.js';

function requests(daemon: TestDaemon): Record<string, unknown>[] {
  const lines = daemon.log
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line));
  return lines.filter(({ msg }) => msg === 'request');
}

it('each request is one line with who, what, how it ended and how long it took', async () => {
  await using daemon = await TestDaemon.start();
  await daemon.call('/healthz');
  const { headers } = await daemon.call('/version');
  await daemon.call('/v1/snapshots/absent');
  await expect.poll(() => requests(daemon).length).toBe(2);
  expect(requests(daemon)).toMatchObject([
    { route: '/version', status: 200, caller: 'local', outcome: 'ok', request_id: headers['x-request-id'] },
    { route: '/v1/snapshots/:tag', status: 404, snapshot: 'absent', outcome: 'snapshot_not_found' },
  ]);
  for (const { ms } of requests(daemon)) expect(ms).toBeGreaterThan(0);
});

it('a client that goes away before it is answered leaves a line too', async () => {
  await using daemon = await TestDaemon.start();
  const socket = connect(Number(new URL(daemon.url).port), '127.0.0.1');
  const head =
    'POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n';
  socket.write(`${head}Content-Length: 9\r\n\r\n`);
  await new Promise((done) => socket.once('data', done));
  socket.resetAndDestroy();
  await expect.poll(() => requests(daemon)).toMatchObject([{ status: 499, outcome: 'cancelled' }]);
});

it('the level decides what is logged', async () => {
  await using daemon = await TestDaemon.start(['--log-level', 'debug']);
  await daemon.call('/healthz');
  await expect.poll(() => requests(daemon)).toMatchObject([{ route: '/healthz', status: 200 }]);
});

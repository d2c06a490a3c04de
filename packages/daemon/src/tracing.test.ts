import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { TestDaemon } from './testing.js';
import { parseTraceparent } from './tracing.js';

const TRACE = '0af7651916cd43dd8448eb211c80319c';
const PARENT = 'b7ad6b7169203331';

interface Span {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  startTimeUnixNano: string;
  endTimeUnixNano: string;
  attributes: { key: string; value: { stringValue?: string; intValue?: string } }[];
}

const received: Span[] = [];
const collector = createServer((request, reply) => {
  let text = '';
  request.on('data', (chunk) => {
    text += chunk;
  });
  request.on('end', () => {
    expect([request.method, request.url]).toEqual(['POST', '/v1/traces']);
    for (const { scopeSpans } of JSON.parse(text).resourceSpans)
      for (const { spans } of scopeSpans) received.push(...spans);
    reply.end('{}');
  });
});
let endpoint: string;
beforeAll(async () => {
  await new Promise<void>((done) => collector.listen(0, '127.0.0.1', done));
  endpoint = `http://127.0.0.1:${(collector.address() as AddressInfo).port}`;
});
afterAll(() => collector.close());

it('each request is a span, in the trace of its caller', async () => {
  await using daemon = await TestDaemon.start(['--otlp-endpoint', `${endpoint}/`]);
  await daemon.call('/v1/snapshots/absent', { headers: { traceparent: `00-${TRACE}-${PARENT}-01` } });
  await daemon.call('/version');
  await daemon.call('/v1/recipes', { headers: { traceparent: `00-${TRACE}-${PARENT}-00` } });
  await expect.poll(() => received.length, { timeout: 5000 }).toBe(2);
  const [absent, version] = received as [Span, Span];
  expect(absent).toMatchObject({ traceId: TRACE, parentSpanId: PARENT, name: 'GET /v1/snapshots/:tag' });
  const values = Object.fromEntries(absent.attributes.map(({ key, value }) => [key, Object.values(value)[0]]));
  expect(values).toMatchObject({
    'http.route': '/v1/snapshots/:tag',
    'http.response.status_code': '404',
    'error.type': 'snapshot_not_found',
    'forkd.snapshot': 'absent',
    'forkd.caller': 'local',
  });
  expect(version.traceId).toMatch(/^[0-9a-f]{32}$/);
  expect(version.parentSpanId).toBeUndefined();
  expect(BigInt(version.endTimeUnixNano) > BigInt(version.startTimeUnixNano)).toBe(true);
  // What was not sent yet is sent before it ends.
  await daemon.call('/version');
  daemon.signal('SIGTERM');
  expect(await daemon.ended()).toBe(0);
  expect(received.length).toBe(3);
});

it('a collector that does not answer is said once and holds nothing up', async () => {
  await using daemon = await TestDaemon.start(['--otlp-endpoint', 'http://user:hunter2@127.0.0.1:9']);
  for (let i = 0; i < 3; i++) expect((await daemon.call('/version')).status).toBe(200);
  await daemon.prints(/traces cannot be sent/);
  expect(daemon.log).not.toContain('hunter2');
});

it.each([
  undefined,
  '',
  'nonsense',
  `ff-${TRACE}-${PARENT}-01`,
  `00-${'0'.repeat(32)}-${PARENT}-01`,
  `00-${TRACE}-${'0'.repeat(16)}-01`,
  `00-${TRACE.toUpperCase()}-${PARENT}-01`,
  `00-${TRACE}-${PARENT}-01-more`,
])('the traceparent %j is as good as none', (header) => {
  expect(parseTraceparent(header)).toBeUndefined();
});

it('a traceparent of a later version is understood as far as it is known', () => {
  expect(parseTraceparent(`01-${TRACE}-${PARENT}-01-more`)).toEqual({ traceId: TRACE, spanId: PARENT, sampled: true });
});

import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { TestDaemon } from './testing.js';

let daemon: TestDaemon;
beforeAll(async () => {
  daemon = await TestDaemon.start(['--branch-concurrency', '7']);
});
afterAll(() => daemon[Symbol.asyncDispose]());

async function scrape(): Promise<string> {
  const { status, headers, text } = await daemon.call('/metrics');
  expect([status, headers['content-type']]).toEqual([200, expect.stringMatching(/^text\/plain; version=0\.0\.4/)]);
  return text;
}

it('has the gauges of forkd by their names', async () => {
  expect(await scrape()).toMatch(/^forkd_build_info\{version="\d+\.\d+\.\d+"\} 1$/m);
  expect(await scrape()).toMatch(/^forkd_branch_concurrency_cap 7$/m);
  for (const name of ['forkd_snapshots_total', 'forkd_sandboxes_active', 'forkd_branches_in_flight'])
    expect(await scrape()).toMatch(new RegExp(`^# TYPE ${name} gauge\n${name} 0$`, 'm'));
});

it('has what is measured of spawns, execs, evals, boots and the process', async () => {
  const text = await scrape();
  for (const name of ['spawn', 'exec', 'eval', 'boot'])
    expect(text).toContain(`# TYPE forkd_${name}_seconds histogram`);
  for (const name of ['sandboxes_spawned', 'sandboxes_exited'])
    expect(text).toContain(`# TYPE forkd_${name}_total counter`);
  for (const name of [
    'process_resident_memory_bytes',
    'process_cpu_seconds_total',
    'process_open_fds',
    'nodejs_eventloop_lag_p99_seconds',
  ])
    expect(text).toMatch(new RegExp(`^${name} \\d`, 'm'));
});

it('counts requests by the paths of the table, whatever paths clients make up', async () => {
  for (const path of ['/v1/snapshots/one', '/v1/snapshots/two', '/made/up', '/v1/%zz']) await daemon.call(path);
  await expect.poll(scrape).toContain('forkd_requests_total{route="unknown",method="GET",status="404"} 1');
  const text = await scrape();
  expect(text).toContain('forkd_requests_total{route="/v1/snapshots/:tag",method="GET",status="404"} 2');
  expect(text).toContain('forkd_request_seconds_count{route="/v1/snapshots/:tag"} 2');
  expect(text).not.toMatch(/made\/up|snapshots\/two/);
});

it('the documentation lists what there is, and nothing else', async () => {
  const text = readFileSync(new URL('../../../docs/daemon.md', import.meta.url), 'utf8');
  const listed = [...text.matchAll(/^\| `(forkd_\w+)` \| (\w+)/gm)].map(([, name, kind]) => `${name} ${kind}`);
  const served = [...(await scrape()).matchAll(/^# TYPE (forkd_\w+ \w+)/gm)].map(([, type]) => type);
  expect(listed.sort()).toEqual(served.sort());
});

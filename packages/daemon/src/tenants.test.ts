import { readFileSync, writeFileSync } from 'node:fs';
import { type Hierarchy, hierarchies } from '@forkd/controller';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Answer, plainRecipes, TestDaemon, temporaryData } from './testing.js';

const ADMIN = 'admin-0123456789abcdef';
const SMALL = 'small-0123456789abcdef';
const FULL = 'full-0123456789abcdef';
const SLOW = 'slow-0123456789abcdef';
const [ANN, BOB, EVE] = ['ann-0123456789abcdef', 'bob-0123456789abcdef', 'eve-0123456789abcdef'] as const;
let daemon: TestDaemon;
const root = temporaryData();

const say = (method: string, url: string, body?: unknown, token = ADMIN): Promise<Answer> =>
  daemon.call(url, { method, token, ...(body !== undefined && { body: JSON.stringify(body) }) });
const spawn = (more = {}, token = ADMIN): Promise<Answer> =>
  say('POST', '/v1/sandboxes', { snapshot_tag: 'plain', ...more }, token);
const kill = async (...answers: Answer[]): Promise<void> => {
  for (const { body } of answers) for (const { id } of body) await say('DELETE', `/v1/sandboxes/${id}`);
};

/** What a file says in a cgroup of a process. */
function inCgroup(pid: number, controller: string, file: string): string {
  const has = ({ controllers }: Hierarchy): boolean => controllers.includes(controller);
  const { version, path } = hierarchies().find(has)!;
  const own = readFileSync(`/proc/${pid}/cgroup`, 'utf8').split('\n');
  const line = own.find((one) =>
    version === 2 ? one.startsWith('0::') : one.split(':')[1]!.split(',').includes(controller),
  )!;
  return readFileSync(`${path}${line.split(':')[2]}/${file}`, 'utf8').trim();
}

beforeAll(async () => {
  const entry = (name: string, role: string, token: string, quota = ''): string =>
    `[[token]]\nname = "${name}"\nrole = "${role}"\ntoken = "${token}"\n${quota}\n`;
  const tokens = [
    entry('root', 'admin', ADMIN),
    entry('small', 'admin', SMALL, 'max_sandboxes = 2\nmax_memory_mib = 300\nmax_cpus = 1.5\nmax_disk_mib = 100'),
    entry('slow', 'admin', SLOW, 'spawns_per_minute = 2'),
    entry('full', 'admin', FULL, 'max_disk_mib = 10'),
    entry('ann', 'user', ANN),
    entry('bob', 'user', BOB),
    entry('eve', 'user', EVE),
  ];
  writeFileSync(`${root}/tokens.toml`, tokens.join(''), { mode: 0o600 });
  daemon = await TestDaemon.start(
    ['--recipes', plainRecipes(root), '--tokens-file', `${root}/tokens.toml`, '--overcommit', '4'],
    root,
  );
  expect((await say('POST', '/v1/snapshots', { tag: 'plain', recipe: 'plain' })).status).toBe(201);
});
afterAll(async () => {
  for (const { id } of (await say('GET', '/v1/sandboxes')).body) await say('DELETE', `/v1/sandboxes/${id}`);
  await daemon[Symbol.asyncDispose]();
});

it('every sandbox has a limit of processes, and forks keep the limits of their source', async () => {
  const born = await spawn({ cpu_limit: 0.5, write_bps_limit: 1 << 20 });
  const [{ id, pid, ...info }] = born.body;
  expect(info).toMatchObject({ pids_limit: 256, cpu_limit: 0.5, write_bps_limit: 1 << 20, disk_mib: 64 });
  expect(inCgroup(pid, 'pids', 'pids.max')).toBe('256');
  const forked = await say('POST', `/v1/sandboxes/${id}/fork`, { pids_limit: 64 });
  const [{ sandbox }] = forked.body.results;
  expect(sandbox).toMatchObject({ pids_limit: 64, cpu_limit: 0.5 });
  expect(inCgroup(sandbox.pid, 'pids', 'pids.max')).toBe('64');
  await kill(born, { ...forked, body: [sandbox] });
});

it('who burns CPU is held to its quota', async () => {
  const born = await spawn({ n: 3, cpu_limit: 0.2 });
  expect(born.status, born.text).toBe(201);
  const [{ id, pid }] = born.body;
  await say('POST', `/v1/sandboxes/${id}/exec`, {
    args: ['sh', '-c', 'nohup sh -c "while :; do :; done" >/dev/null 2>&1 &'],
  });
  const used = (): number => {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]!.split(' ');
    return (Number(stat[11]) + Number(stat[12])) / 100;
  };
  const [before, since] = [used(), performance.now()];
  await new Promise((done) => setTimeout(done, 3_000));
  const share = (used() - before) / ((performance.now() - since) / 1000);
  expect(share).toBeGreaterThan(0.02);
  expect(share).toBeLessThan(0.4);
  await kill(born);
});

it.each([1, 3])('who writes to its disk is held to its rate (%i at once)', async (n) => {
  const born = await spawn({ n, write_bps_limit: 2 << 20 });
  expect(born.status, born.text).toBe(201);
  const args = ['dd', 'if=/dev/zero', 'of=/root/x', 'bs=1M', 'count=6', 'oflag=direct'];
  const since = performance.now();
  const { body } = await say('POST', `/v1/sandboxes/${born.body[0].id}/exec`, { args });
  expect(body.exit_code, body.stderr).toBe(0);
  expect(performance.now() - since).toBeGreaterThan(1_500);
  await kill(born);
});

it.each([
  ['max_sandboxes', { n: 3 }],
  ['max_memory_mib', { memory_limit_mib: 301 }],
  ['max_cpus', { cpu_limit: 1.6 }],
  ['max_disk_mib', { n: 2, cpu_limit: 0.1 }],
])('a token may not have more than its %s', async (quota, wanted) => {
  const { status, body } = await spawn(wanted, SMALL);
  expect([status, body.code, body.details?.quota]).toEqual([403, 'quota_exceeded', quota]);
});

it('a token that has used up its disk makes no more snapshots', async () => {
  expect((await say('POST', '/v1/snapshots', { tag: 'full', recipe: 'plain' }, FULL)).status).toBe(201);
  const { status, body } = await say('POST', '/v1/snapshots', { tag: 'fuller', recipe: 'plain' }, FULL);
  expect([status, body.code, body.details.quota]).toEqual([403, 'quota_exceeded', 'max_disk_mib']);
  expect((await spawn({}, FULL)).body.code).toBe('quota_exceeded');
  expect((await say('DELETE', '/v1/snapshots/full', undefined, FULL)).status).toBe(204);
});

it('what has ended counts no longer', async () => {
  const born = await spawn({}, SMALL);
  expect([born.status, (await spawn({}, SMALL)).status]).toEqual([201, 403]);
  await kill(born);
  const again = await spawn({}, SMALL);
  expect(again.status).toBe(201);
  await kill(again);
});

it('a token may not start them faster than its rate', async () => {
  expect((await spawn({ n: 3 }, SLOW)).body).toMatchObject({ code: 'quota_exceeded' });
  const born = await spawn({ n: 2 }, SLOW);
  expect(born.status).toBe(201);
  const { status, headers, body } = await spawn({}, SLOW);
  expect([status, body.code]).toEqual([429, 'rate_limited']);
  expect(Number(headers['retry-after'])).toBeGreaterThan(10);
  await kill(born);
});

it('what does not fit on the host is refused before it is begun', async () => {
  const { status, body } = await spawn({ n: 1000, memory_limit_mib: 1 << 20 });
  expect([status, body.code]).toEqual([507, 'host_full']);
  expect(body.hint).toContain('--overcommit');
  expect((await say('GET', '/v1/sandboxes')).body).toEqual([]);
});

describe('a snapshot that is shared', () => {
  const share = (whom: unknown, token: string = ANN): Promise<Answer> =>
    say('PUT', '/v1/snapshots/annes/share', { with: whom }, token);
  const seen = async (token: string): Promise<number> =>
    (await say('GET', '/v1/snapshots/annes', undefined, token)).status;
  let child: Answer;

  beforeAll(async () => {
    const made = await say('POST', '/v1/snapshots', { tag: 'annes', recipe: 'plain' }, ANN);
    expect(made.status, made.text).toBe(201);
  });

  it('does not exist for others until then', async () => {
    expect([await seen(ANN), await seen(BOB), await seen(EVE)]).toEqual([200, 404, 404]);
    expect((await share(['bob'], BOB)).status).toBe(404);
    expect((await say('POST', '/v1/sandboxes', { snapshot_tag: 'annes' }, BOB)).status).toBe(404);
    for (const bad of ['bob', ['../x'], [1], null, { a: 1 }]) expect((await share(bad)).status).toBe(400);
  });

  it('can be read and spawned from by those who are named, and by nobody else', async () => {
    expect((await share(['bob', 'bob'])).body.shared_with).toEqual(['bob']);
    expect([await seen(BOB), await seen(EVE)]).toEqual([200, 404]);
    const listed = async (token: string): Promise<object> =>
      (await say('GET', '/v1/snapshots', undefined, token)).body.map(
        (info: { tag: string; shared_with?: string[] }) => [info.tag, info.shared_with],
      );
    expect(await listed(ANN)).toEqual([['annes', ['bob']]]);
    expect(await listed(BOB)).toEqual([['annes', undefined]]);
    expect(await listed(EVE)).toEqual([]);
    child = await say('POST', '/v1/sandboxes', { snapshot_tag: 'annes' }, BOB);
    expect([child.status, child.body[0].owner]).toEqual([201, 'bob']);
    // What comes of it is not the owner's.
    expect((await say('GET', `/v1/sandboxes/${child.body[0].id}`, undefined, ANN)).status).toBe(404);
    expect((await say('GET', '/v1/snapshots/annes/info', undefined, ANN)).body.sandboxes).toEqual([]);
    expect((await say('GET', '/v1/snapshots/annes/info', undefined, BOB)).body.sandboxes).toHaveLength(1);
  });

  it('cannot be changed, copied, shared or removed by them', async () => {
    for (const [method, url, body] of [
      ['DELETE', '/v1/snapshots/annes', undefined],
      ['PATCH', '/v1/snapshots/annes', { pinned: true }],
      ['PUT', '/v1/snapshots/annes/share', { with: 'all' }],
      ['POST', '/v1/snapshots/annes/compact', { to: 'mine' }],
    ] as const)
      expect((await say(method, url, body, BOB)).body).toMatchObject({ code: 'forbidden' });
  });

  it('takes nothing of others along when it goes', async () => {
    const { id } = child.body[0];
    expect((await say('POST', `/v1/sandboxes/${id}/branch`, { tag: 'bobs' }, BOB)).status).toBe(201);
    expect((await say('DELETE', '/v1/snapshots/annes', undefined, ANN)).status).toBe(409);
    await kill(child);
    expect((await say('DELETE', '/v1/snapshots/annes?cascade=true', undefined, ANN)).body.code).toBe('state_conflict');
    expect((await share([])).body.shared_with).toBeUndefined();
    expect(await seen(BOB)).toBe(404);
    expect((await share('all')).body.shared_with).toBe('all');
    expect([await seen(BOB), await seen(EVE)]).toEqual([200, 200]);
    expect((await say('DELETE', '/v1/snapshots/annes?force=true', undefined, ANN)).status).toBe(204);
    const again = await say('POST', '/v1/sandboxes', { snapshot_tag: 'bobs' }, BOB);
    expect(again.status, again.text).toBe(201);
    await kill(again);
  });
});

import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { AgentFixture, until } from './agent.fixture.js';
import type { GuestClient, Identity } from './index.js';

let agent: AgentFixture;
let host: GuestClient;

beforeEach(async () => {
  agent = await AgentFixture.start();
  host = await agent.client();
  symlinkSync(agent.process.spawnfile, `${agent.directory}/forkd-guest`);
});
afterEach(() => agent.stop());

function identity(more: Partial<Identity> = {}): Identity {
  return {
    id: 'sb-source',
    parent: 'base',
    index: 0,
    count: 1,
    time_unix_ns: `${Date.now()}000000`,
    entropy: randomBytes(64).toString('base64'),
    hostname: 'h',
    guest_branch: true,
    ...more,
  };
}

const environment = (): Record<string, string> => ({
  PATH: `${agent.directory}:${process.env.PATH}`,
  FORKD_GUEST_SOCKET: `${tmpdir()}/forkd-agent-${agent.process.pid}/guest.sock`,
});

interface Said {
  process: ChildProcess;
  code: Promise<number | null>;
  out: () => string;
  err: () => string;
}

function forkdGuest(...args: string[]): Said {
  const child = spawn(`${agent.directory}/forkd-guest`, args, { env: environment() });
  const said = { out: '', err: '' };
  child.stdout.on('data', (data) => (said.out += data));
  child.stderr.on('data', (data) => (said.err += data));
  const code = new Promise<number | null>((done) => child.once('close', done));
  return { process: child, code, out: () => said.out.trim(), err: () => said.err.trim() };
}

it('one that may not is refused at once, and so is nonsense', async () => {
  const early = forkdGuest('branch');
  expect([await early.code, early.out()]).toEqual([1, '']);
  await host.identity(identity({ guest_branch: false }));
  const refused = forkdGuest('branch', '--fork', '2');
  expect(await refused.code).toBe(1);
  expect(refused.err()).toMatch(/may not be branched from inside\nhint: .*guest_branch/);
  const json = forkdGuest('branch', '--json');
  expect(await json.code).toBe(1);
  expect(JSON.parse(json.out())).toMatchObject({ error: { code: 'not_permitted' } });
  for (const args of [[], ['fork'], ['branch', '--fork', '-1'], ['branch', '--tag']])
    expect(await forkdGuest(...args).code).toBe(2);
});

it('the host hears what is asked for, also before it listened, and its answer is what the process gets', async () => {
  await host.identity(identity());
  const first = forkdGuest('branch', '--fork', '2', '--tag', 'half-way');
  await new Promise((done) => setTimeout(done, 100));
  const wishes = host.wishes();
  const { value: wish } = await wishes.next();
  expect(wish).toMatchObject({ fork: 2, tag: 'half-way' });
  // One at a time.
  const second = forkdGuest('branch');
  expect([await second.code, second.err()]).toEqual([1, expect.stringContaining('another process')]);
  await host.answerWish(wish!.id, { role: 'source', tag: 'half-way', children: ['sb-1', 'sb-2'], failed: [] });
  expect([await first.code, first.out()]).toEqual([0, 'source half-way sb-1 sb-2']);
  await expect(host.answerWish(wish!.id, { role: 'source', tag: 't', children: [], failed: [] })).rejects.toThrow(
    /nobody waits/,
  );
  const third = forkdGuest('branch', '--json');
  const { value: next } = await wishes.next();
  await host.answerWish(next!.id, { error: { code: 'budget_exceeded', message: 'too many', hint: 'fewer' } });
  expect([await third.code, JSON.parse(third.out()).error.code]).toEqual([1, 'budget_exceeded']);
  // Who is gone does not keep others from asking.
  const gone = forkdGuest('branch');
  const { value: dropped } = await wishes.next();
  gone.process.kill('SIGKILL');
  await gone.code;
  await until(async () =>
    host.answerWish(dropped!.id, { role: 'source', tag: 't', children: [], failed: [] }).then(
      () => false,
      () => true,
    ),
  );
  const last = forkdGuest('branch');
  const { value: heard } = await wishes.next();
  await host.answerWish(heard!.id, { role: 'source', tag: 't', children: [], failed: ['no room'] });
  expect([await last.code, last.out(), last.err()]).toEqual([0, 'source t', expect.stringContaining('no room')]);
});

it('in a copy it is a child; another name alone makes no child', async () => {
  await host.identity(identity());
  const asking = forkdGuest('branch', '--fork', '3');
  await host.wishes().next();
  const reborn = await agent.client();
  await reborn.identity(identity({ id: 'sb-renamed' }));
  await reborn.identity(identity({ id: 'sb-child', parent: 'half-way', index: 1, count: 3, born: true }));
  expect([await asking.code, asking.out()]).toEqual([0, 'child 2 sb-child']);
});

it('who was asked and went away is not asked again', async () => {
  await host.identity(identity());
  const asking = forkdGuest('branch', '--fork', '3');
  await host.wishes().next();
  host.close();
  (await agent.client())
    .wishes()
    .next()
    .catch(() => {});
  expect([await asking.code, asking.err()]).toEqual([1, expect.stringContaining('restarted')]);
});

it.each([
  ['a child goes on though whoever had started it is gone', true],
  ['in the source it ends with whoever had started it', false],
])('%s', async (_what, born) => {
  await host.identity(identity());
  const client = await agent.client();
  const said = `${agent.directory}/said`;
  const command = `mine=7; answer=$(forkd-guest branch --fork 1); echo "$mine $answer" > ${said}; sleep 100`;
  const process = await client.start({ command, env: environment() });
  const { value: wish } = await host.wishes().next();
  client.close();
  await new Promise((done) => setTimeout(done, 100));
  if (born) await host.identity(identity({ id: 'sb-child', born }));
  else await host.answerWish(wish!.id, { role: 'source', tag: 't', children: [], failed: [] });
  const alive = (): boolean => existsSync(`/proc/${process.pid}`);
  if (born) await until(() => existsSync(said) && readFileSync(said, 'utf8') === '7 child 1 sb-child\n');
  await (born ? new Promise((done) => setTimeout(done, 200)) : until(() => !alive()));
  expect(alive()).toBe(born);
});

import { execFileSync } from 'node:child_process';
import { closeSync, existsSync, openSync, readdirSync, readFileSync, writeSync } from 'node:fs';
import { setTimeout as sleep, setImmediate as turn } from 'node:timers/promises';
import { Controller, processesUsing } from '@forkd/controller';
import { QemuEngine } from '@forkd/engine-qemu';
import { HostHelper } from '@forkd/host';
import type { SandboxInfo } from '@forkd/protocol';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { type Answer, plainRecipes, TestDaemon, temporaryData } from './testing.js';

/** What a branch has to write, and so how long it takes; in a file in the guest's memory. */
const BIG = "head -c 40M /dev/zero | tr '\\0' x > /dev/shm/big; cksum /dev/shm/big";

let daemon: TestDaemon;
let root: string;
/** Of the daemon itself: what else uses its directory is a sandbox, or should not be there. */
let own: number[];

/** After the daemon has been killed, or has ended by itself. */
async function restart(): Promise<void> {
  await daemon.restart();
  own = [daemon.process.pid!, daemon.helper];
}

/** The source runs, and nothing of an attempt is left: no process but the zygotes, no file, no tag but `plain` and `more`. */
async function settled(source: string | undefined, ...more: string[]): Promise<void> {
  if (source) expect(await daemon.shell(source, 'hostname')).toBe(source);
  const sandboxes: SandboxInfo[] = (await daemon.say('GET', '/v1/sandboxes')).body;
  const ids = sandboxes.map(({ id }) => id);
  const known = [...own, ...sandboxes.map(({ pid }) => pid)];
  const zygotes = processesUsing(root).filter((pid) => !known.includes(pid));
  expect(zygotes.length).toBeLessThanOrEqual(more.length);
  const places = readdirSync(`${root}/run/daemon`).filter((name) => name.startsWith('zygote-'));
  const theirs = places.flatMap((name) => processesUsing(`${root}/run/daemon/${name}`));
  for (const pid of zygotes) expect(theirs).toContain(pid);
  const left = readdirSync(`${root}/run/daemon`).filter((name) => !ids.includes(name) && !name.startsWith('zygote-'));
  expect(left).toEqual([]);
  expect(readdirSync(`${root}/snapshots`).sort()).toEqual(['plain', ...more].sort());
}

function branch(id: string, body: object = {}): Promise<Answer> {
  return daemon.say('POST', `/v1/sandboxes/${id}/branch`, body);
}

async function drop(tag: string): Promise<void> {
  expect((await daemon.say('DELETE', `/v1/snapshots/${tag}?force=true`)).status).toBe(204);
}

/** A tag either gives children with all the source had, or it does not exist. */
async function wholeOrAbsent(tag: string, { status, body }: Answer, sum: string): Promise<void> {
  const now = await daemon.say('GET', `/v1/snapshots/${tag}`);
  if (status !== 201) return expect([tag, now.status, body.code]).toEqual([tag, 404, expect.any(String)]);
  expect(now.body.status).toBe('ready');
  const child = await daemon.spawn(tag);
  expect(await daemon.shell(child, 'cksum /dev/shm/big')).toBe(sum);
  await daemon.say('DELETE', `/v1/sandboxes/${child}`);
  await drop(tag);
}

async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  for (const deadline = Date.now() + 20_000; !(await condition()); await turn())
    if (Date.now() > deadline) throw new Error(`never: ${condition}`);
}

/** Whether a guest that is busy gets any time. */
async function runs(pid: number): Promise<boolean> {
  const ticks = (): number => {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]!.split(' ');
    return Number(fields[11]) + Number(fields[12]);
  };
  const before = ticks();
  await sleep(600);
  return ticks() - before >= 10;
}

beforeAll(async () => {
  root = temporaryData();
  daemon = await TestDaemon.start(['--recipes', plainRecipes(root)], root);
  expect((await daemon.say('POST', '/v1/snapshots', { tag: 'plain', recipe: 'plain' })).status).toBe(201);
  own = processesUsing(root);
});

afterEach(() => daemon.killAll());

afterAll(() => daemon.stop());

it.each(['SIGKILL', 'DELETE'])('a branch of a source that is ended by %s meanwhile (class 31)', async (how) => {
  for (const [k, afterMs] of [0, 15, 30, 60, 120].entries()) {
    const [tag, mode] = [`ended-${k}`, k % 2 ? 'diff' : 'live'];
    const source = await daemon.spawn('plain');
    const { pid } = (await daemon.say('GET', `/v1/sandboxes/${source}`)).body;
    const sum = await daemon.shell(source, BIG);
    const branching = branch(source, { tag, mode });
    await sleep(afterMs);
    if (how === 'SIGKILL') process.kill(pid, how);
    else expect((await daemon.say('DELETE', `/v1/sandboxes/${source}`)).status).toBe(204);
    await wholeOrAbsent(tag, await branching, sum);
    await settled(undefined);
  }
});

it('a branch whose client goes away is given up at once, and holds nothing (class 31)', async () => {
  const source = await daemon.spawn('plain');
  await daemon.shell(source, BIG);
  expect((await branch(source, { tag: 'middle' })).status).toBe(201);
  const child = await daemon.spawn('middle');
  for (const [k, afterMs] of [5, 10, 20, 40, 80].entries()) {
    const body = JSON.stringify({ tag: `gone-${k}`, mode: ['live', 'diff', 'full'][k % 3] });
    const gone = AbortSignal.timeout(afterMs);
    await daemon.call(`/v1/sandboxes/${child}/branch`, { method: 'POST', body, signal: gone }).catch(() => {});
    await until(async () => !/_in_flight [1-9]/.test((await daemon.call('/metrics')).text));
    if (existsSync(`${root}/snapshots/gone-${k}`)) await drop(`gone-${k}`);
    await settled(child, 'middle');
  }
  expect((await daemon.say('DELETE', '/v1/snapshots/middle')).status).toBe(409);
  await daemon.say('DELETE', `/v1/sandboxes/${child}`);
  await drop('middle');
});

it('a branch that is being written cannot be removed', async () => {
  const source = await daemon.spawn('plain');
  await daemon.shell(source, BIG);
  const tag = 'unripe';
  for (let refused = false; !refused; ) {
    const branching = branch(source, { tag });
    await until(async () => (await daemon.say('GET', `/v1/snapshots/${tag}`)).status === 200);
    const { status, body } = await daemon.say('DELETE', `/v1/snapshots/${tag}`);
    refused = status === 409;
    if (refused) expect(body.details).toMatchObject({ state: 'writing' });
    expect((await branching).status).toBe(201);
    if (refused) await drop(tag);
  }
  await settled(source);
});

it('a branch of a guest that a command runs in: it goes on in the source, and has ended in the child', async () => {
  const source = await daemon.spawn('plain');
  const body = JSON.stringify({ args: ['sh', '-c', 'while :; do echo tick-tock; sleep 0.1; done'], timeout_secs: 300 });
  const gone = new AbortController();
  const headers = { accept: 'application/x-ndjson', authorization: '', 'content-type': 'application/json' };
  const reply = await fetch(`${daemon.url}/v1/sandboxes/${source}/exec`, {
    method: 'POST',
    body,
    headers,
    signal: gone.signal,
  });
  const stream = reply.body!.getReader();
  const ticks = async (count: number): Promise<void> => {
    for (let k = 0; k < count; k++) expect((await stream.read()).done).toBe(false);
  };
  await ticks(3);
  expect((await branch(source, { tag: 'ticking' })).status).toBe(201);
  await ticks(10);
  const child = await daemon.spawn('ticking');
  const commands = 'cat /proc/[0-9]*/cmdline | tr "\\0" " "';
  expect(await daemon.shell(source, commands)).toContain('echo tick-tock');
  await until(async () => !(await daemon.shell(child, commands)).includes('echo tick-tock'));
  await ticks(3);
  gone.abort();
  await daemon.say('DELETE', `/v1/sandboxes/${child}`);
  await drop('ticking');
  await settled(source);
});

it('a branch of a guest with open connections: they go on in the source and in the child', async () => {
  const source = await daemon.spawn('plain');
  await daemon.shell(source, 'cat > /root/echo.py', ECHO);
  await daemon.shell(source, 'setsid python3 /root/echo.py > /dev/null 2> /dev/shm/broken &');
  const count = async (id: string): Promise<number> =>
    Number(await daemon.shell(id, 'cat /dev/shm/broken >&2; [ ! -s /dev/shm/broken ] && cat /dev/shm/count || echo 0'));
  await until(async () => (await count(source)) > 0);
  expect((await branch(source, { tag: 'connected' })).status).toBe(201);
  const child = await daemon.spawn('connected');
  for (const id of [source, child]) {
    const before = await count(id);
    expect(before).toBeGreaterThan(0);
    await until(async () => (await count(id)) > before + 10);
  }
  await daemon.say('DELETE', `/v1/sandboxes/${child}`);
  await drop('connected');
  await settled(source);
});

it('a branch of ten sources at the same time: as many as may be, each with its own memory (classes 24 and 25)', async () => {
  const { body } = await daemon.say('POST', '/v1/sandboxes', { snapshot_tag: 'plain', n: 10 });
  const ids = (body as SandboxInfo[]).map(({ id }) => id);
  await Promise.all(
    ids.map((id) => daemon.shell(id, `echo ${id} > /dev/shm/me; head -c 5M /dev/urandom > /dev/shm/big`)),
  );
  const waiting = new Set(ids);
  const refused: string[] = [];
  let most = 0;
  while (waiting.size > 0) {
    const answers = Promise.all(
      [...waiting].map(async (id) => {
        const { status, body } = await branch(id, { tag: `of-${id}` });
        if (status === 201) waiting.delete(id);
        else refused.push(`${status} ${body.code}`);
      }),
    );
    const { text } = await daemon.call('/metrics');
    most = Math.max(most, Number(/^forkd_branches_in_flight (\d+)/m.exec(text)?.[1]));
    await answers;
  }
  expect(new Set(refused)).toEqual(new Set(['503 overloaded']));
  expect(most).toBeGreaterThan(0);
  expect(most).toBeLessThanOrEqual(4);
  await daemon.killAll();
  for (const id of ids) {
    const child = await daemon.spawn(`of-${id}`);
    expect(await daemon.shell(child, 'cat /dev/shm/me')).toBe(id);
    await daemon.say('DELETE', `/v1/sandboxes/${child}`);
    await drop(`of-${id}`);
  }
  await settled(undefined);
});

it('a branch leaves the memory it comes from as it was, and is refused when it does not fit (class 15)', async () => {
  const sum = (): string => execFileSync('sha256sum', [`${root}/snapshots/plain/memory.img`]).toString();
  const before = sum();
  const source = await daemon.spawn('plain');
  await daemon.shell(source, BIG);
  expect((await branch(source, { tag: 'large' })).status).toBe(201);
  expect((await branch(await daemon.spawn('large'), { tag: 'larger' })).status).toBe(201);
  expect(sum()).toBe(before);
  const diff = openSync(`${root}/snapshots/larger/memory.diff`, 'a');
  writeSync(diff, Buffer.alloc(4096));
  closeSync(diff);
  const { status, body } = await daemon.say('POST', '/v1/sandboxes', { snapshot_tag: 'larger' });
  expect([status, body.error]).toEqual([expect.any(Number), expect.stringContaining('damaged')]);
  expect(sum()).toBe(before);
  await daemon.killAll();
  for (const tag of ['larger', 'large']) await drop(tag);
});

it('a branch is not touched by another program that tidies the same data directory meanwhile (class 17)', async () => {
  const source = await daemon.spawn('plain');
  const sum = await daemon.shell(source, BIG);
  const helper = HostHelper.start();
  const branching = branch(source, { tag: 'kept' });
  for (let writing = true; writing; ) {
    const controller = await Controller.open(root, new QemuEngine({ helper }), helper);
    await controller[Symbol.asyncDispose]();
    writing = await Promise.race([branching.then(() => false), turn(true)]);
  }
  await helper[Symbol.asyncDispose]();
  expect((await branching).status).toBe(201);
  await wholeOrAbsent('kept', await branching, sum);
  await settled(source);
});

it('a branch outlives the snapshot it comes from, also while it runs and after a restart (class 18)', async () => {
  const source = await daemon.spawn('plain');
  const sum = await daemon.shell(source, BIG);
  expect((await branch(source, { tag: 'father' })).status).toBe(201);
  await daemon.say('DELETE', `/v1/sandboxes/${source}`);
  const middle = await daemon.spawn('father');
  expect((await branch(middle, { tag: 'son' })).status).toBe(201);
  const child = await daemon.spawn('son');
  await daemon.say('DELETE', `/v1/sandboxes/${middle}`);
  const refused = await daemon.say('DELETE', '/v1/snapshots/father');
  expect([refused.status, refused.body.error]).toEqual([409, expect.stringContaining('son')]);
  await drop('father');
  daemon.signal('SIGKILL');
  await restart();
  for (const id of [child, await daemon.spawn('son')]) expect(await daemon.shell(id, 'cksum /dev/shm/big')).toBe(sum);
  expect((await branch(child, { tag: 'grandson' })).status).toBe(201);
  await daemon.killAll();
  for (const tag of ['grandson', 'son']) await drop(tag);
});

/** The last one says how far it has come: in mode live the source runs again while devices and memory are being written. */
it.each([
  ['daemon', 'full', 'memory.img'],
  ['daemon', 'diff', 'device.state'],
  ['daemon', 'live', 'upper.img'],
  ['daemon', 'live', 'memory.diff'],
  ['helper', 'full', 'memory.img'],
  ['helper', 'live', 'upper.img'],
  ['helper', 'live', 'memory.diff'],
] as const)('a branch in which the %s is killed, mode %s, at %s: the source goes on', async (victim, mode, file) => {
  const source = await daemon.spawn('plain');
  await daemon.shell(source, BIG);
  await daemon.shell(source, 'while :; do :; done > /dev/null 2>&1 &');
  const { pid } = (await daemon.say('GET', `/v1/sandboxes/${source}`)).body;
  const lost = branch(source, { tag: 'lost', mode, wait: mode !== 'live' }).catch(() => {});
  const written = `${root}/run/daemon/snapshot-lost/${file}`;
  while (!existsSync(written)) await turn();
  if (victim === 'daemon') daemon.signal('SIGKILL');
  else process.kill(daemon.helper, 'SIGKILL');
  await daemon.ended();
  await lost;
  // Nobody has started another daemon yet.
  expect(await runs(pid)).toBe(true);
  await restart();
  const { status, body } = await daemon.say('GET', '/v1/snapshots/lost');
  expect([200, 404]).toContain(status);
  if (status === 200) expect(body.status).toBe('failed');
  if (status === 200) await drop('lost');
  expect((await daemon.say('GET', `/v1/sandboxes/${source}`)).body).toMatchObject({ pid, state: 'running' });
  await settled(source);
});

it('a sandbox that is paused gets no time, so that the test above means something', async () => {
  const source = await daemon.spawn('plain');
  await daemon.shell(source, 'while :; do :; done > /dev/null 2>&1 &');
  const { pid } = (await daemon.say('GET', `/v1/sandboxes/${source}`)).body;
  expect(await runs(pid)).toBe(true);
  await daemon.say('POST', `/v1/sandboxes/${source}/pause`);
  expect(await runs(pid)).toBe(false);
});

/** A server and a client on one connection, for ever; whatever breaks is written down. */
const ECHO = `
import os, socket, time
server = socket.create_server(("127.0.0.1", 4711))
if os.fork() == 0:
    connection, _ = server.accept()
    while data := connection.recv(100):
        connection.sendall(data)
    raise SystemExit("the client is gone")
client = socket.create_connection(("127.0.0.1", 4711))
count = 0
while True:
    count += 1
    client.sendall(b"%08d" % count)
    answer = client.recv(100)
    assert answer == b"%08d" % count, answer
    with open("/dev/shm/count.new", "w") as file:
        file.write(str(count))
    os.replace("/dev/shm/count.new", "/dev/shm/count")
    time.sleep(0.01)
`;

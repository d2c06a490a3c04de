import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import type { Duplex } from 'node:stream';
import { expect, it } from 'vitest';
import { nativeBinary } from './native-binary.js';
import { gone, isAlive, spawnSpec, temporaryDirectory } from './testing.js';

const root = temporaryDirectory();

/** The helper without its client: lines in, lines out. */
async function rawHelper() {
  const helper = untold();
  expect(await helper.ask({ id: 0, op: 'reach', files: 'anywhere' })).toEqual({ id: 0, ok: {} });
  return helper;
}

function untold() {
  const child = spawn(nativeBinary('forkd-host-helper'), [], {
    stdio: ['ignore', 'ignore', 'ignore', 'pipe'],
    env: {},
  });
  const socket = child.stdio[3] as Duplex;
  const lines = createInterface(socket)[Symbol.asyncIterator]();
  return {
    child,
    send: (text: string) => socket.write(`${text}\n`),
    ask: async (request: object): Promise<unknown> => {
      socket.write(`${JSON.stringify(request)}\n`);
      return JSON.parse((await lines.next()).value);
    },
    close: async () => {
      socket.end();
      if (child.exitCode === null) await once(child, 'exit');
    },
  };
}

it('a bad request is answered under its id, and the next one is served', async () => {
  const { ask, close } = await rawHelper();
  const bad = [
    { id: 1, op: 'format_disk' },
    { id: 2, op: 'kill', pid: 'x' },
    { id: 3, op: 'clone_file', from: '/a', to: '/b', force: true },
    { id: 4, op: 'spawn', ...wire(['true']), argv: [] },
    { id: 5, op: 'spawn', ...wire(['true']), rlimits: { luck: 1 } },
    { id: 6, op: 'kill', pid: 1, start_time: 0, signal: 9 },
  ];
  for (const request of bad)
    expect(await ask(request)).toEqual({ id: request.id, error: { message: expect.any(String), errno: null } });
  expect(await ask({ id: 7, op: 'measure_tsc' })).toEqual({ id: 7, ok: { khz: expect.any(Number) } });
  await close();
});

it('nothing is served before it is said which files may be used, and that is said once', async () => {
  const { ask, close } = untold();
  const refused = (id: number): unknown => ({
    id,
    error: { message: expect.stringContaining('may use'), errno: null },
  });
  expect(await ask({ id: 1, op: 'measure_tsc' })).toEqual(refused(1));
  expect(await ask({ id: 2, op: 'spawn', ...wire(['true']) })).toEqual(refused(2));
  expect(await ask({ id: 3, op: 'reach', files: 'some' })).toMatchObject({ id: 3, error: {} });
  expect(await ask({ id: 4, op: 'reach', files: 'only', within: [root], read: [] })).toEqual({ id: 4, ok: {} });
  expect(await ask({ id: 5, op: 'reach', files: 'anywhere' })).toEqual(refused(5));
  expect(await ask({ id: 6, op: 'spawn', ...wire(['true']) })).toMatchObject({ error: { errno: 'EREACH' } });
  await close();
});

it('a line that is no request ends the helper, and the processes tied to it', async () => {
  for (const line of ['no json', '{"op":"measure_tsc"}', `"${'x'.repeat(2 << 20)}`]) {
    const { ask, send, child, close } = await rawHelper();
    const { ok } = (await ask({ id: 1, op: 'spawn', ...wire(['sleep', '60']) })) as { ok: { pid: number } };
    send(line);
    await once(child, 'exit');
    expect(await gone(ok.pid, 1000)).toBe(true);
    await close();
  }
});

it('a signal for a process that only has the pid of the wanted one is not delivered', async () => {
  const { ask, close } = await rawHelper();
  const started = (await ask({ id: 1, op: 'spawn', ...wire(['sleep', '60']) })) as {
    ok: { pid: number; start_time: number };
  };
  const { pid, start_time } = started.ok;
  const other = { id: 2, op: 'kill', pid, start_time: start_time + 1, signal: 9 };
  expect(await ask(other)).toEqual({ id: 2, ok: { delivered: false } });
  expect(isAlive(pid)).toBe(true);
  expect(await ask({ ...other, id: 3, start_time })).toEqual({ id: 3, ok: { delivered: true } });
  await close();
});

function wire(argv: string[]) {
  return { ...spawnSpec(`${root}/log`, argv), oom_score_adj: null };
}

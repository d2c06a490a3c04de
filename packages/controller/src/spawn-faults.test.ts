import { copyFileSync, readdirSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { runs } from './processes.js';
import { snapshotFiles } from './snapshot.js';
import type { SpawnResult } from './spawn-options.js';
import { close, dataDirectory, openController, plainRecipe, running, until, vmms } from './testing.js';

const root = dataDirectory();
let controller: Awaited<ReturnType<typeof openController>>;
beforeAll(async () => {
  controller = await openController(root);
  await controller.createSnapshot({ tag: 'plain', recipe: await plainRecipe(), recipeName: 'plain' });
});
afterAll(() => close(controller));

const failures = (results: SpawnResult[]) => results.flatMap((result) => (result.ok ? [] : [result.error]));
const zygotes = () => vmms(controller).filter((pid) => !controller.sandboxes().some(({ vm }) => vm.pid === pid));
const killAll = () => Promise.all(controller.sandboxes().map((sandbox) => sandbox.kill()));

describe('a spawn that is given up', () => {
  it('leaves the children it has handed out, and no others', async () => {
    const abort = new AbortController();
    const ready: string[] = [];
    let since = 0;
    const results = await controller.spawn({
      tag: 'plain',
      n: 20,
      signal: abort.signal,
      onReady: ({ id }) => {
        ready.push(id);
        if (ready.length !== 3) return;
        since = performance.now();
        abort.abort();
      },
    });
    expect(performance.now() - since).toBeLessThan(2000);
    expect(ready.length).toBeLessThan(8);
    const errors = failures(results);
    expect(errors).toHaveLength(20 - ready.length);
    for (const error of errors) expect(error).toMatchObject({ code: 'cancelled', name: 'ForkdError' });
    expect(running(controller).sort()).toEqual([...ready].sort());
    for (const sandbox of controller.sandboxes()) expect((await sandbox.guest.health()).identity).toBe(sandbox.id);
    await killAll();
    expect(running(controller)).toEqual([]);
    expect(failures(await controller.spawn({ tag: 'plain', n: 3 }))).toEqual([]);
    await killAll();
  });

  it('before it began starts nothing', async () => {
    const spawned = controller.spawn({ tag: 'plain', n: 3, signal: AbortSignal.abort() });
    await expect(spawned).rejects.toMatchObject({ code: 'cancelled', name: 'ForkdError' });
    expect(running(controller)).toEqual([]);
  });
});

describe('a VMM that is killed before its child is ready', () => {
  it('costs only this child, and at once', { timeout: 30_000 }, async () => {
    for (let round = 0; round < 5; round++) {
      const before = new Set(vmms(controller));
      let victim: number | undefined;
      const spawned = controller.spawn({ tag: 'plain', n: 6 });
      await until(() => {
        victim = vmms(controller).find((pid) => !before.has(pid));
        return victim !== undefined;
      }, 5000);
      process.kill(victim!, 'SIGKILL');
      const since = performance.now();
      const errors = failures(await spawned);
      expect(performance.now() - since).toBeLessThan(5000);
      expect(errors.map(({ code }) => code)).toEqual(['vmm_exited']);
      expect(controller.sandboxes()).toHaveLength(5);
      for (const sandbox of controller.sandboxes()) expect((await sandbox.guest.health()).identity).toBe(sandbox.id);
      await killAll();
      expect(running(controller)).toEqual([]);
    }
  });
});

it('a zygote that is killed while children are forked from it costs no more than those', {
  timeout: 30_000,
}, async () => {
  for (const afterMs of [0, 5, 10, 20, 30]) {
    const [zygote] = (await controller.spawn({ tag: 'plain', n: 3 })) && zygotes();
    await killAll();
    const spawned = controller.spawn({ tag: 'plain', n: 8 });
    setTimeout(() => process.kill(zygote!, 'SIGKILL'), afterMs);
    const since = performance.now();
    for (const { code } of failures(await spawned)) expect(code).toBe('vmm_exited');
    expect(performance.now() - since).toBeLessThan(5000);
    for (const sandbox of controller.sandboxes()) expect((await sandbox.guest.health()).identity).toBe(sandbox.id);
    await killAll();
    expect(running(controller)).toEqual([]);
  }
});

describe('a snapshot with a file that is', () => {
  const files = snapshotFiles(`${root}/snapshots/plain`);
  let other: Awaited<ReturnType<typeof openController>>;
  let file = '';
  const damaged = async (path: string, damage: (path: string) => void): Promise<void> => {
    file = path;
    copyFileSync(file, `${root}/kept`);
    damage(file);
    // One of its own: the other has a zygote that no longer needs the files.
    await close(controller);
    other = await openController(root);
  };
  afterEach(async () => {
    expect(readdirSync(other.data.own)).toEqual([]);
    await close(other);
    renameSync(`${root}/kept`, file);
    controller = await openController(root);
  });

  for (const [name, path] of Object.entries({ state: files.state, memory: files.memory, upper: files.upper }))
    it(`missing (${name}) is refused, and named`, async () => {
      await damaged(path, rmSync);
      for (const n of [1, 4]) {
        const refused = { code: 'host_unfit', message: expect.stringContaining(path) };
        await expect(other.spawn({ tag: 'plain', n })).rejects.toMatchObject(refused);
      }
    });

  it('cut short is refused, and named', async () => {
    await damaged(files.memory, (memory) => truncateSync(memory, 32 << 20));
    await expect(other.spawn({ tag: 'plain', n: 4 })).rejects.toMatchObject({ code: 'host_unfit' });
  });

  it('not what it was makes every child fail, each with what its VMM said', async () => {
    await damaged(files.state, (state) => writeFileSync(state, Buffer.alloc(4096, 'x')));
    for (const n of [1, 4]) {
      const since = performance.now();
      const errors = failures(await other.spawn({ tag: 'plain', n }));
      expect(errors.map(({ code }) => code)).toEqual(Array(n).fill('vmm_exited'));
      for (const { message } of errors) expect(message).toMatch(/before it was ready\n.*migration stream/s);
      expect(performance.now() - since).toBeLessThan(10_000);
    }
  });
});

it('without its helper a controller loses its VMs, says so, and can be closed', async () => {
  const own = await openController(root);
  const [result] = await own.spawn({ tag: 'plain', n: 3 });
  if (!result?.ok) throw result?.error;
  const { sandbox } = result;
  const pids = vmms(own);
  expect(pids).toHaveLength(4);
  process.kill(own.helper.pid!, 'SIGKILL');
  await until(() => !pids.some(runs), 2000);
  await expect(sandbox.guest.health()).rejects.toMatchObject({ code: 'vmm_exited' });
  await sandbox.exited;
  for (const error of failures(await own.spawn({ tag: 'plain', n: 2 })))
    expect(error.message).toContain('the host helper ended');
  const recipe = await plainRecipe();
  const created = own.createSnapshot({ tag: 'late', recipe, recipeName: 'late' });
  await expect(created).rejects.toThrow('the host helper ended');
  await close(own);
});

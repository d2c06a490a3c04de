import { mkdirSync, readFileSync, rmSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { cpuMs } from './quiet.js';
import type { Sandbox } from './sandbox.js';
import { close, dataDirectory, openController, plainRecipe, until, vmms } from './testing.js';

const root = dataDirectory();
let controller: Awaited<ReturnType<typeof openController>>;
beforeAll(async () => {
  controller = await openController(root);
  await controller.createSnapshot({ tag: 'plain', recipe: await plainRecipe(), recipeName: 'plain' });
});
afterAll(() => close(controller));

it('a zygote idles for as long as nobody needs it, and then stands still', async () => {
  const pid = vmms(controller)[0]!;
  const usedIn = async (ms: number): Promise<number> => {
    const before = cpuMs(pid);
    await sleep(ms);
    return cpuMs(pid) - before;
  };
  expect(await usedIn(1000)).toBeGreaterThan(0);
  const children = await Promise.all([spawn('plain'), spawn('plain')]);
  expect(await usedIn(500)).toBe(0);
  for (const child of children) {
    await answers(child);
    await child.kill();
  }
});

it('an idle guest lets its emulator sleep', async () => {
  const child = await spawn('plain');
  const woken = (): number => {
    const status = readFileSync(`/proc/${child.vm.pid}/status`, 'utf8');
    return Number(/^voluntary_ctxt_switches:\s+(\d+)/m.exec(status)![1]);
  };
  const windows: number[] = [];
  for (let count = 0; count < 3; count++) {
    const before = woken();
    await sleep(1000);
    windows.push(woken() - before);
  }
  // A timer that runs for nobody makes it 36.
  expect(Math.min(...windows)).toBeLessThan(20);
  await child.kill();
});

const zygotes = (): number => vmms(controller).length - controller.sandboxes().length;

it('zygotes that were not used for longest make room for others, and are made again when they are needed', async () => {
  const [result] = await controller.spawn({ tag: 'plain', n: 1 });
  if (!result?.ok) throw result?.error;
  for (let k = 0; k < 10; k++) {
    const tag = `branch-${k}`;
    await controller.beginBranch(result.sandbox.id, { tag, mode: 'live', owner: 'local' }).done;
    const children = await controller.spawn({ tag, n: 3 });
    expect(children.map(({ ok }) => ok)).toEqual([true, true, true]);
    for (const child of children) if (child.ok) await child.sandbox.kill();
  }
  await until(() => zygotes() <= 8, 5000);
  expect(zygotes()).toBeGreaterThan(4);
  const again = await controller.spawn({ tag: 'branch-0', n: 3 });
  expect(again.map(({ ok }) => ok)).toEqual([true, true, true]);
  await until(() => zygotes() <= 8, 5000);
});

async function spawn(tag: string): Promise<Sandbox> {
  const [result] = await controller.spawn({ tag, n: 1 });
  if (!result?.ok) throw result?.error;
  return result.sandbox;
}

async function answers({ guest }: Sandbox): Promise<void> {
  expect((await guest.exec({ args: ['echo', 'here'] })).stdout).toBe('here\n');
}

it('a line of branches may be longer than namespaces may be nested', async () => {
  let sandbox = await spawn('plain');
  for (let generation = 0; generation < 20; generation++) {
    const tag = `generation-${generation}`;
    await controller.beginBranch(sandbox.id, { tag, mode: 'live', owner: 'local' }).done;
    await sandbox.kill();
    sandbox = await spawn(tag);
    await answers(sandbox);
  }
  await sandbox.kill();
}, 60_000);

it('a copy that cannot wake costs a second pause, which is told, and nothing else', async () => {
  const sandbox = await spawn('plain');
  const places = Array.from({ length: 200 }, (_, k) => `${controller.data.own}/zygote-${k}`);
  const inTheWay = places.filter((place) => mkdirSync(place, { recursive: true }) !== undefined);
  const before = zygotes();
  const { branch } = await controller.beginBranch(sandbox.id, { tag: 'awake', mode: 'live', owner: 'local' }).done;
  expect([branch?.diff, zygotes()]).toEqual([true, before]);
  const told = controller.events.since(0).map(({ message }) => message);
  expect(told).toContainEqual(expect.stringContaining('did not wake'));
  for (const place of inTheWay) rmSync(place, { recursive: true });
  await answers(await spawn('awake'));
  await answers(sandbox);
});

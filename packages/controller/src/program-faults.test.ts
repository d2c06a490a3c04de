import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { runs as isAlive } from './processes.js';
import { close, dataDirectory, openController, plainRecipe, startProgram, until } from './testing.js';

const root = dataDirectory();
let controller: Awaited<ReturnType<typeof openController>>;
beforeAll(async () => {
  controller = await openController(root);
  await controller.createSnapshot({ tag: 'plain', recipe: await plainRecipe(), recipeName: 'plain' });
});
afterAll(() => close(controller));

async function program(): Promise<{ child: ChildProcess; pids: number[] }> {
  const { child, born } = await startProgram(root, 'plain');
  return { child, pids: born.map(({ pid }) => pid) };
}

const runs = (): string[] => readdirSync(`${root}/run`).sort();

it('two programs on one data directory do not notice each other', async () => {
  const { child, pids } = await program();
  const results = await controller.spawn({ tag: 'plain', n: 3 });
  expect(results.map(({ ok }) => ok)).toEqual([true, true, true]);
  expect(runs()).toHaveLength(2);
  child.stdin!.end();
  await once(child, 'exit');
  expect(pids.filter(isAlive)).toEqual([]);
  expect(runs()).toHaveLength(1);
  for (const sandbox of controller.sandboxes()) expect((await sandbox.guest.health()).identity).toBe(sandbox.id);

  const { child: second, pids: others } = await program();
  await Promise.all(controller.sandboxes().map((sandbox) => sandbox.kill()));
  await close(controller);
  expect(others.every(isAlive)).toBe(true);
  controller = await openController(root);
  expect(others.every(isAlive)).toBe(true);
  second.stdin!.end();
  await once(second, 'exit');
});

it('the VMs of a program that is killed end with it, and the next program removes what it left', async () => {
  const { child, pids } = await program();
  child.kill('SIGKILL');
  await once(child, 'exit');
  await until(() => !pids.some(isAlive), 2000);
  expect(runs()).toHaveLength(2);
  await close(controller);
  controller = await openController(root);
  expect(runs()).toHaveLength(1);
});

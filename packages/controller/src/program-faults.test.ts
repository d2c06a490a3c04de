import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { close, dataDirectory, openController, plainRecipe, until } from './testing.js';

const PROGRAM = fileURLToPath(new URL('../dist/program.fixture.js', import.meta.url));
const root = dataDirectory();
let controller: Awaited<ReturnType<typeof openController>>;
beforeAll(async () => {
  controller = await openController(root);
  await controller.createSnapshot({ tag: 'plain', recipe: await plainRecipe(), recipeName: 'plain' });
});
afterAll(() => close(controller));

async function program(bond: 'tied' | 'untied' = 'tied'): Promise<{ child: ChildProcess; pids: number[] }> {
  const child = spawn(process.execPath, [PROGRAM, root, 'plain', bond], { stdio: ['pipe', 'pipe', 'inherit'] });
  const [line] = await once(createInterface(child.stdout), 'line');
  const pids: number[] = JSON.parse(line);
  for (const pid of pids) expect(isAlive(pid)).toBe(true);
  return { child, pids };
}

const isAlive = (pid: number): boolean => existsSync(`/proc/${pid}`);
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

it('untied VMs outlive a program that is killed', async () => {
  const { child, pids } = await program('untied');
  child.kill('SIGKILL');
  await once(child, 'exit');
  await new Promise((resolve) => setTimeout(resolve, 500));
  expect(pids.every(isAlive)).toBe(true);
  for (const pid of pids) process.kill(pid, 'SIGKILL');
  await until(() => !pids.some(isAlive), 2000);
  await close(controller);
  controller = await openController(root);
});

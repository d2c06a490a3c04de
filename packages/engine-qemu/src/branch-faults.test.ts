import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { buildCounter, eventually, guestCounter, havingMapped } from '@forkd/engine/guest-counter';
import { HostHelper } from '@forkd/host';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { QemuEngine } from './qemu-engine.js';

const PROGRAM = fileURLToPath(new URL('../dist/branch.fixture.js', import.meta.url));
const machine = { vcpus: 1, memoryMib: 64, accel: 'tcg' as const };
const root = mkdtempSync(`${tmpdir()}/forkd-faults-`);
const from = `${root}/saved`;
const memory = `${from}/memory.img`;
const helper = HostHelper.start();
const engine = new QemuEngine({ helper });

beforeAll(async () => {
  mkdirSync(from);
  const kernel = buildCounter(root);
  const vm = await engine.boot({ machine, kernel, disks: [], directory: from, tied: true, memory });
  await eventually(() => expect(guestCounter(vm.pid)).toBeGreaterThan(1000));
  await vm.pause();
  await vm.save(`${from}/device.state`);
  await vm.stop();
});
afterEach(() => {
  for (const pid of havingMapped(memory)) process.kill(pid, 'SIGKILL');
});
afterAll(async () => {
  await helper[Symbol.asyncDispose]();
  rmSync(root, { recursive: true, force: true });
});

interface Begun {
  pid: number;
  startTime: number;
  helper: number;
}

let next = 0;
async function program(task: 'hold' | 'freeze') {
  const directory = `${root}/${next++}`;
  mkdirSync(directory);
  const child = spawn(process.execPath, [PROGRAM, task, from, directory], { stdio: ['ignore', 'pipe', 'inherit'] });
  const [line] = (await once(createInterface(child.stdout), 'line')) as [string];
  return { child, directory, ...(JSON.parse(line) as Begun) };
}

function stands(pid: number): Promise<boolean> {
  const count = guestCounter(pid);
  return new Promise((resolve) => setTimeout(() => resolve(guestCounter(pid) === count), 100));
}

it('a program that is killed in a guarded pause leaves a VM that runs, and that the next one can branch', async () => {
  const { child, directory, pid, startTime, helper: old } = await program('hold');
  expect(await stands(pid)).toBe(true);
  child.kill('SIGKILL');
  await eventually(() => expect(existsSync(`/proc/${old}`)).toBe(false));
  expect(await stands(pid)).toBe(false);
  const vm = await engine.adopt({ machine, memory, directory, pid, startTime });
  const state = `${directory}/state`;
  const { value: twin } = await vm.guarded(() => vm.freeze(state));
  const count = guestCounter(twin.pid);
  await twin.capture(`${directory}/memory.diff`);
  await twin[Symbol.asyncDispose]();
  await eventually(() => expect(havingMapped(memory)).toEqual([pid]));
  mkdirSync(`${directory}/child`);
  const diff = `${directory}/memory.diff`;
  const place = { machine, disks: [], directory: `${directory}/child`, tied: true, running: false };
  const copy = await engine.restore({ ...place, memory, diff, state });
  expect(guestCounter(copy.pid)).toBe(count);
  await Promise.all([vm.stop(), copy.stop()]);
});

it('a helper or program that is killed while it freezes a VM leaves the VM whole, and no twin', async () => {
  for (let time = 0; time < 12; time++) {
    const { child, directory, pid, startTime, helper: old } = await program('freeze');
    await new Promise((resolve) => setTimeout(resolve, 50 + Math.random() * 50));
    process.kill(time % 2 ? old : child.pid!, 'SIGKILL');
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    await eventually(() => expect(existsSync(`/proc/${old}`)).toBe(false));
    await eventually(() => expect(havingMapped(memory)).toEqual([pid]));
    const vm = await engine.adopt({ machine, memory, directory, pid, startTime });
    await vm.resume();
    expect(await stands(pid)).toBe(false);
    await (await vm.guarded(() => vm.freeze(`${directory}/state`))).value[Symbol.asyncDispose]();
    expect(await stands(pid)).toBe(false);
    await vm.stop();
  }
});

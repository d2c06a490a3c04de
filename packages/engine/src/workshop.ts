import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { afterAll, afterEach, expect } from 'vitest';
import type { Accel, Disk, Engine, Machine, RestoreSpec, Vm } from './engine.js';

export type Workshop = ReturnType<typeof workshop>;

/** A directory and a list of VMs per test; afterwards nothing of them may be left. */
export function workshop(engine: Engine, accel: Accel) {
  const root = mkdtempSync(`${tmpdir()}/forkd-contract-`);
  const vms: Vm[] = [];
  let next = 0;
  afterEach(async () => {
    await Promise.all(vms.map((vm) => vm.stop()));
    for (const { pid } of vms) expect(existsSync(`/proc/${pid}`)).toBe(false);
    vms.length = 0;
  });
  afterAll(() => rmSync(root, { recursive: true, force: true }));
  const directory = (): string => {
    const path = `${root}/${next++}`;
    mkdirSync(path);
    return path;
  };
  const own = async (starting: Promise<Vm>): Promise<Vm> => {
    const vm = await starting;
    vms.push(vm);
    return vm;
  };
  const boot = (
    kernel: string,
    machine: Omit<Machine, 'accel'>,
    initramfs?: string,
    at = directory(),
    disks: Disk[] = [],
  ) =>
    own(
      engine.boot({
        machine: { ...machine, accel },
        kernel,
        ...(initramfs === undefined ? {} : { initramfs }),
        disks,
        directory: at,
        tied: true,
        memory: `${at}/memory.img`,
      }),
    );
  const restore = (from: string, machine: Omit<Machine, 'accel'>, changes: Partial<RestoreSpec> = {}) =>
    own(
      engine.restore({
        machine: { ...machine, accel },
        disks: [],
        directory: directory(),
        tied: true,
        memory: `${from}/memory.img`,
        state: `${from}/device.state`,
        running: true,
        ...changes,
      }),
    );
  return { root, engine, directory, own, boot, restore };
}

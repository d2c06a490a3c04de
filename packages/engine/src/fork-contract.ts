import { existsSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import type { Accel, Disk, Machine, Vm } from './engine.js';
import { eventually, guestCounter } from './guest-counter.js';
import type { Workshop } from './workshop.js';

interface Bench {
  machine: Omit<Machine, 'accel'>;
  /** Saves a counting guest in a directory; returns the count it was saved at. */
  saved(at: string, disks: Disk[]): Promise<number>;
  needs(skip: (note: string) => void): void;
}

/** What `Vm.fork` must do, where it is there. */
export function forking(shop: Workshop, accel: Accel, { machine, saved, needs }: Bench): void {
  const withDisk = (directory: string): string => {
    writeFileSync(`${directory}/disk.img`, Buffer.alloc(1 << 20));
    return directory;
  };

  /** A paused child of a saved guest, with a writable disk of its own. */
  const original = async (): Promise<{ vm: Vm; directory: string; count: number }> => {
    const at = withDisk(shop.directory());
    const disk = (directory: string): Disk[] => [{ path: `${directory}/disk.img`, readOnly: false }];
    const count = await saved(at, disk(at));
    const directory = withDisk(shop.directory());
    const vm = await shop.restore(at, machine, { disks: disk(directory), directory, running: false });
    await eventually(() => expect(guestCounter(vm.pid)).toBe(count));
    return { vm, directory, count };
  };

  const fork = (vm: Vm, directory = withDisk(shop.directory())): Promise<Vm> =>
    shop.own(vm.fork!({ directory, tied: true }));
  const runsOn = (vm: Vm, from: number): Promise<void> =>
    eventually(() => expect(guestCounter(vm.pid)).toBeGreaterThan(from + 1000));
  const standsStill = async (vm: Vm): Promise<void> => {
    const count = guestCounter(vm.pid);
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(guestCounter(vm.pid)).toBe(count);
  };

  if (accel === 'kvm') {
    it('is absent, because the kernel binds a VM to one process', async ({ skip }) => {
      needs(skip);
      expect((await original()).vm.fork).toBeUndefined();
    });
    return;
  }

  it('goes on by itself from where the original stands, which stays there', async () => {
    const { vm, count } = await original();
    const copy = await fork(vm);
    await runsOn(copy, count);
    expect(guestCounter(vm.pid)).toBe(count);
  });

  it('works on an original that ran before it was paused, and that goes on afterwards', async () => {
    const { vm } = await original();
    await vm.resume();
    await eventually(() => expect(guestCounter(vm.pid)).toBeGreaterThan(1000));
    await vm.pause();
    const count = guestCounter(vm.pid);
    const copy = await fork(vm);
    await runsOn(copy, count);
    expect(guestCounter(vm.pid)).toBe(count);
    await vm.resume();
    await runsOn(vm, count);
  });

  it('several forks are apart from each other: each is paused and resumed alone', async () => {
    const { vm, count } = await original();
    const [first, second, third] = await Promise.all([fork(vm), fork(vm), fork(vm)]);
    await Promise.all([first, second, third].map((copy) => runsOn(copy, count)));
    await second.pause();
    await standsStill(second);
    await runsOn(first, guestCounter(first.pid));
    await runsOn(third, guestCounter(third.pid));
    const paused = guestCounter(second.pid);
    await second.resume();
    await runsOn(second, paused);
  });

  it('a fork can be forked again, and its fork too', async () => {
    let { vm, count } = await original();
    for (let generation = 0; generation < 3; generation++) {
      vm = await fork(vm);
      await runsOn(vm, count);
      await vm.pause();
      count = guestCounter(vm.pid);
    }
    await vm.resume();
    await runsOn(vm, count);
  });

  it('one that sleeps first goes on from where the original stood then, also when that has ended', async () => {
    const { vm } = await original();
    await vm.resume();
    await eventually(() => expect(guestCounter(vm.pid)).toBeGreaterThan(1000));
    const { value: sleeper } = await vm.guarded(() => vm.forkAsleep!());
    const count = guestCounter(sleeper.pid);
    await runsOn(vm, count);
    expect(guestCounter(sleeper.pid)).toBe(count);
    await vm.stop();
    const copy = await shop.own(sleeper.wake({ directory: withDisk(shop.directory()), tied: true }));
    await standsStill(copy);
    expect(guestCounter(copy.pid)).toBe(count);
    const child = await fork(copy);
    await runsOn(child, count);
    await copy.resume();
    await runsOn(copy, count);
  });

  it('one that sleeps leaves nothing when it is not wanted, or cannot wake', async () => {
    const { vm, directory } = await original();
    await (await vm.forkAsleep!())[Symbol.asyncDispose]();
    const sleeper = await vm.forkAsleep!();
    await expect(sleeper.wake({ directory: shop.directory(), tied: true })).rejects.toThrow();
    await sleeper[Symbol.asyncDispose]();
    expect(using(directory)).toEqual([vm.pid]);
  });

  it('one that fails leaves no process, and the original can be forked again', async () => {
    const { vm, directory, count } = await original();
    const leftover = withDisk(shop.directory());
    writeFileSync(`${leftover}/qmp.sock`, '');
    const nothing = shop.directory();
    for (const bad of [leftover, nothing, `${shop.root}/absent`]) await expect(fork(vm, bad)).rejects.toThrow();
    expect(using(directory)).toEqual([vm.pid]);
    const copy = await fork(vm);
    await runsOn(copy, count);
    expect(guestCounter(vm.pid)).toBe(count);
  });

  it('outlives the original', async () => {
    const { vm, count } = await original();
    const copy = await fork(vm);
    await vm.stop();
    await runsOn(copy, count);
    await copy.pause();
    await standsStill(copy);
    await expect(vm.fork!({ directory: withDisk(shop.directory()), tied: true })).rejects.toMatchObject({
      code: 'vmm_exited',
    });
  });

  it('has no descriptor in the directory of the original, and leaves its files alone', async () => {
    const { vm, directory } = await original();
    const before = readdirSync(directory).sort();
    const place = withDisk(shop.directory());
    const copy = await fork(vm, place);
    const open = descriptors(copy.pid);
    expect(open.filter((path) => path.startsWith(`${directory}/`))).toEqual([]);
    expect(open).toContain(`${place}/disk.img`);
    const sockets = descriptors(vm.pid).filter((path) => path.startsWith('socket:'));
    expect(open.filter((path) => sockets.includes(path))).toEqual([]);
    await copy.stop();
    expect(readdirSync(directory).sort()).toEqual(before);
  });

  it('is absent on a VM that was booted, because its memory is a file that every copy would write', async () => {
    const vm = await shop.boot(`${shop.root}/counter.elf`, machine);
    expect(vm.fork).toBeUndefined();
  });
}

function descriptors(pid: number): string[] {
  return readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
    try {
      return [readlinkSync(`/proc/${pid}/fd/${fd}`)];
    } catch {
      // Closed meanwhile.
      return [];
    }
  });
}

/** Processes started with, or copied from one that was started with, a path in this directory. */
function using(directory: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && existsSync(`/proc/${name}/cmdline`))
    .filter((pid) => readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(`${directory}/`))
    .map(Number);
}

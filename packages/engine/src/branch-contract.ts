import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, readdirSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { afterAll, expect, it } from 'vitest';
import type { Accel, Disk, Machine, Twin, Vm } from './engine.js';
import { eventually, guestCounter, havingMapped, peekGuest, pokeGuest } from './guest-counter.js';
import type { Workshop } from './workshop.js';

interface Bench {
  machine: Omit<Machine, 'accel'>;
  /** Saves a counting guest in a directory; returns the count it was saved at. */
  saved(at: string, disks?: Disk[], machine?: Omit<Machine, 'accel'>): Promise<number>;
  needs(skip: (note: string) => void): void;
}

const MIB = 1 << 20;
const PAGE = 4096;
/** Beyond what the counting guest writes. */
const FREE = 16 * MIB;

/** What freezing and capturing a VM, and restoring what was captured, must do. */
export function branching(shop: Workshop, accel: Accel, { machine, saved, needs }: Bench): void {
  const runsOn = (vm: Vm, from: number): Promise<void> =>
    eventually(() => expect(guestCounter(vm.pid)).toBeGreaterThan(from + 1000));
  const counting = async (vm: Vm): Promise<void> => runsOn(vm, guestCounter(vm.pid));

  /** A running child of a saved guest, and the directory of what it was restored from. */
  const source = async (of = machine): Promise<{ vm: Vm; root: string }> => {
    const root = shop.directory();
    const count = await saved(root, [], of);
    const vm = await shop.restore(root, of);
    await runsOn(vm, count);
    return { vm, root };
  };

  const frozen = async (vm: Vm): Promise<{ twin: Twin; state: string; count: number }> => {
    const state = `${shop.directory()}/device.state`;
    const { value, pauseMs } = await vm.guarded(async () => ({
      twin: await vm.freeze(state),
      count: guestCounter(vm.pid),
    }));
    expect(pauseMs).toBeLessThan(1000);
    return { ...value, state };
  };

  const branch = async (vm: Vm) => {
    const { twin, state, count } = await frozen(vm);
    await using _ = twin;
    const diff = `${shop.directory()}/memory.diff`;
    const captured = await twin.capture(diff);
    return { diff, state, count, captured };
  };

  const child = (root: string, { diff, state }: { diff: string; state: string }, running = false, of = machine) =>
    shop.restore(root, of, { diff, state, running });

  const mounted = (options: string): string => {
    const path = shop.directory();
    execFileSync('mount', ['-t', 'tmpfs', '-o', options, 'forkd-test', path]);
    mounts.push(path);
    return path;
  };
  const mounts: string[] = [];
  afterAll(() => {
    for (const path of mounts) execFileSync('umount', [path]);
  });

  it('the source counts on, the twin stands still, and a child goes on from the instant', async ({ skip }) => {
    needs(skip);
    const { vm, root } = await source();
    const { twin, state, count } = await frozen(vm);
    await runsOn(vm, count);
    expect(guestCounter(twin.pid)).toBe(count);
    const diff = `${root}/memory.diff`;
    const captured = await twin.capture(diff);
    expect(statSync(diff).size).toBe(machine.memoryMib * MIB);
    expect(captured.physicalBytes).toBeLessThanOrEqual(1.2 * captured.dirtyBytes);
    expect(captured.writtenBytes).toBeLessThanOrEqual(captured.dirtyBytes);
    await twin[Symbol.asyncDispose]();
    expect(existsSync(`/proc/${twin.pid}`)).toBe(false);
    const still = await child(root, { diff, state });
    expect(guestCounter(still.pid)).toBe(count);
    await still.resume();
    await runsOn(still, count);
    await runsOn(await child(root, { diff, state }, true), count);
  });

  it('a twin has no descriptor, and ends with nobody noticing', async ({ skip }) => {
    needs(skip);
    const { vm } = await source();
    const { twin } = await frozen(vm);
    expect(readdirSync(`/proc/${twin.pid}/fd`)).toEqual([]);
    await twin[Symbol.asyncDispose]();
    await counting(vm);
  });

  it('a twin outlives its source', async ({ skip }) => {
    needs(skip);
    const { vm, root } = await source();
    const { twin, state, count } = await frozen(vm);
    await vm.stop();
    const diff = `${root}/memory.diff`;
    await twin.capture(diff);
    await twin[Symbol.asyncDispose]();
    expect(guestCounter((await child(root, { diff, state })).pid)).toBe(count);
  });

  it('a branch of a branch of a branch holds all that differs from the root', async ({ skip }) => {
    needs(skip);
    const { vm, root } = await source();
    let parent = vm;
    for (const depth of [1, 2, 3]) {
      pokeGuest(parent.pid, FREE + depth * PAGE, Buffer.alloc(PAGE, depth));
      const made = await branch(parent);
      parent = await child(root, made);
      expect(guestCounter(parent.pid)).toBe(made.count);
      for (let i = 1; i <= depth; i++)
        expect(peekGuest(parent.pid, FREE + i * PAGE, PAGE).equals(Buffer.alloc(PAGE, i))).toBe(true);
      await parent.resume();
      await runsOn(parent, made.count);
    }
  });

  it('a page that became zero is in the diff, one that became what it was is not', async ({ skip }) => {
    needs(skip);
    const { vm, root } = await source();
    await vm.pause();
    const before = await branch(vm);
    expect(peekGuest(vm.pid, MIB, PAGE).equals(Buffer.alloc(PAGE))).toBe(false);
    pokeGuest(vm.pid, MIB, Buffer.alloc(PAGE));
    pokeGuest(vm.pid, FREE, Buffer.alloc(4 * PAGE));
    const after = await branch(vm);
    expect(after.captured.dirtyBytes).toBe(before.captured.dirtyBytes + 5 * PAGE);
    expect(after.captured.writtenBytes).toBe(before.captured.writtenBytes + PAGE);
    expect(peekGuest((await child(root, after)).pid, MIB, PAGE).equals(Buffer.alloc(PAGE))).toBe(true);
  });

  it('what lies beside a page is right also where files are kept in large blocks', async ({ skip }) => {
    needs(skip);
    const { vm, root } = await source();
    // The first page of the guest's program is the image's, the second is not.
    pokeGuest(vm.pid, MIB + PAGE, Buffer.alloc(PAGE, 5));
    const { twin, state, count } = await frozen(vm);
    const diff = `${mounted('size=64m,huge=always')}/memory.diff`;
    await twin.capture(diff);
    await twin[Symbol.asyncDispose]();
    const copy = await child(root, { diff, state });
    expect(peekGuest(copy.pid, MIB, PAGE).equals(peekGuest(vm.pid, MIB, PAGE))).toBe(true);
    await copy.resume();
    await runsOn(copy, count);
  });

  for (const vcpus of [2, 4])
    it(`works with ${vcpus} vCPUs`, async ({ skip }) => {
      needs(skip);
      const larger = { ...machine, vcpus };
      const { vm, root } = await source(larger);
      const made = await branch(vm);
      await counting(vm);
      expect(guestCounter((await child(root, made, false, larger)).pid)).toBe(made.count);
    });

  it('works with more than 3 GiB, to the last page', async ({ skip }) => {
    needs(skip);
    const larger = { ...machine, memoryMib: 3584 };
    const { vm, root } = await source(larger);
    const last = 3584 * MIB - PAGE;
    const marks = [3 * 1024 * MIB - PAGE, 3 * 1024 * MIB, last].map((at) => ({ at, bytes: randomBytes(PAGE) }));
    for (const { at, bytes } of marks) pokeGuest(vm.pid, at, bytes);
    const made = await branch(vm);
    await counting(vm);
    const copy = await child(root, made, false, larger);
    expect(guestCounter(copy.pid)).toBe(made.count);
    for (const { at, bytes } of marks) expect(peekGuest(copy.pid, at, PAGE).equals(bytes)).toBe(true);
  });

  for (const full of [false, true])
    it(`captured inside the pause, ${full ? 'as an image of its own' : 'as a diff'}`, async ({ skip }) => {
      needs(skip);
      const { vm, root } = await source();
      pokeGuest(vm.pid, FREE, Buffer.alloc(PAGE, 7));
      const at = shop.directory();
      const file = full ? `${at}/memory.img` : `${at}/memory.diff`;
      const { value: count } = await vm.guarded(async () => {
        await vm.capture(`${at}/device.state`, file, { full });
        return guestCounter(vm.pid);
      });
      await counting(vm);
      expect(statSync(file).blocks * 512).toBeLessThan(16 * MIB);
      const state = `${at}/device.state`;
      const copy = await (full ? shop.restore(at, machine, { running: false }) : child(root, { diff: file, state }));
      await eventually(() => expect(guestCounter(copy.pid)).toBe(count));
      expect(peekGuest(copy.pid, FREE, PAGE).equals(Buffer.alloc(PAGE, 7))).toBe(true);
      await copy.resume();
      await runsOn(copy, count);
    });

  it('is refused for a VM that was booted: its RAM is the image', async ({ skip }) => {
    needs(skip);
    const at = shop.directory();
    const vm = await shop.boot(`${shop.root}/counter.elf`, machine, undefined, at);
    await counting(vm);
    await expect(vm.guarded(() => vm.freeze(`${at}/state`))).rejects.toThrow('its RAM is the image itself');
    await expect(vm.guarded(() => vm.capture(`${at}/state`, `${at}/diff`))).rejects.toThrow('the image itself');
    expect(existsSync(`${at}/diff`)).toBe(false);
    await counting(vm);
  });

  it('a diff of another size, or one that is not there, is refused and leaves no VM', async ({ skip }) => {
    needs(skip);
    const { vm, root } = await source();
    const made = await branch(vm);
    truncateSync(made.diff, machine.memoryMib * MIB + PAGE);
    await expect(child(root, made)).rejects.toThrow('do not belong to a RAM');
    expect(statSync(`${root}/memory.img`).size).toBe(machine.memoryMib * MIB);
    await expect(child(root, { ...made, diff: `${root}/absent` })).rejects.toThrow('No such file');
  });

  it('a twin that is killed in the middle of a capture, or an abort, leaves no file', async ({ skip }) => {
    needs(skip);
    const { vm, root } = await source();
    pokeGuest(vm.pid, FREE, randomBytes(32 * MIB));
    const to = `${root}/memory.diff`;
    const { twin } = await frozen(vm);
    const killed = twin.capture(to);
    process.kill(twin.pid, 'SIGKILL');
    await expect(killed).rejects.toMatchObject({ code: 'vmm_exited' });
    expect(existsSync(to)).toBe(false);
    const { twin: other } = await frozen(vm);
    const abort = new AbortController();
    const aborted = other.capture(to, abort.signal);
    abort.abort();
    await expect(aborted).rejects.toMatchObject({ name: 'AbortError' });
    expect(existsSync(to)).toBe(false);
    await other[Symbol.asyncDispose]();
    await expect(twin.capture(to)).rejects.toMatchObject({ code: 'vmm_exited' });
    await counting(vm);
  });

  it('a full disk leaves nothing, and the source runs', async ({ skip }) => {
    needs(skip);
    const { vm } = await source();
    pokeGuest(vm.pid, FREE, randomBytes(4 * MIB));
    const small = mounted('size=1m');
    const { twin } = await frozen(vm);
    await expect(twin.capture(`${small}/diff`)).rejects.toMatchObject({ code: 'disk_full' });
    await twin[Symbol.asyncDispose]();
    for (const full of [false, true]) {
      const capturing = vm.guarded(() => vm.capture(`${small}/state`, `${small}/diff`, { full }));
      await expect(capturing).rejects.toMatchObject({ code: 'disk_full' });
    }
    expect(existsSync(`${small}/diff`)).toBe(false);
    writeFileSync(`${small}/filler`, Buffer.alloc(statSync(small).blksize * 200));
    try {
      writeFileSync(`${small}/rest`, Buffer.alloc(MIB));
    } catch {}
    await expect(vm.guarded(() => vm.freeze(`${small}/state-two`))).rejects.toThrow();
    await counting(vm);
  });

  it('whatever becomes of guarded work, the VM runs again; one that stood still does not', async ({ skip }) => {
    needs(skip);
    const { vm } = await source();
    const never = () => new Promise<void>(() => {});
    const stands = async (): Promise<void> => {
      const count = guestCounter(vm.pid);
      await new Promise((resolve) => setTimeout(resolve, 20));
      expect(guestCounter(vm.pid)).toBe(count);
    };
    await vm.guarded(stands);
    await counting(vm);
    await expect(vm.guarded(() => Promise.reject(new Error('no')))).rejects.toThrow('no');
    await counting(vm);
    await expect(vm.guarded(never, { timeoutMs: 50 })).rejects.toMatchObject({ code: 'timeout' });
    await counting(vm);
    await expect(vm.guarded(never, { signal: AbortSignal.timeout(50) })).rejects.toMatchObject({
      name: 'TimeoutError',
    });
    await counting(vm);
    // Those who want the same wait for each other.
    await Promise.all([vm.guarded(stands), vm.guarded(stands), vm.resume(), vm.guarded(stands)]);
    await counting(vm);
    await vm.pause();
    expect((await vm.guarded(stands)).pauseMs).toBe(0);
    await stands();
  });

  it('a VM that was left and adopted can be branched', async ({ skip }) => {
    needs(skip);
    const { vm, root } = await source();
    const directory = shop.directory();
    const left = await shop.restore(root, machine, { directory, tied: false });
    left.leave();
    const { pid, startTime } = left;
    const memory = `${root}/memory.img`;
    const adopted = await shop.own(
      shop.engine.adopt({ machine: { ...machine, accel }, memory, directory, pid, startTime }),
    );
    await counting(adopted);
    const made = await branch(adopted);
    expect(guestCounter((await child(root, made)).pid)).toBe(made.count);
    await counting(vm);
  });

  it('a VM that is killed while it is frozen is said to be gone, and no twin is left', async ({ skip }) => {
    needs(skip);
    const { vm, root } = await source();
    const freezing = vm.guarded(() => vm.freeze(`${root}/state`));
    setTimeout(() => process.kill(vm.pid, 'SIGKILL'), 2);
    const [outcome] = await Promise.allSettled([freezing]);
    if (outcome.status === 'fulfilled') await outcome.value.value[Symbol.asyncDispose]();
    else expect(outcome.reason).toMatchObject({ code: 'vmm_exited' });
    await eventually(() => expect(havingMapped(`${root}/memory.img`)).toEqual([]));
  });

  it('a child that has not run differs in nothing', async ({ skip }) => {
    needs(skip);
    const root = shop.directory();
    const count = await saved(root);
    const vm = await shop.restore(root, machine, { running: false });
    await eventually(() => expect(guestCounter(vm.pid)).toBe(count));
    expect((await branch(vm)).captured).toMatchObject({ dirtyBytes: 0, writtenBytes: 0 });
  });

  if (accel === 'tcg')
    it('a VM that began with a diff can be forked, and what is forked can be branched', async () => {
      const { vm, root } = await source();
      pokeGuest(vm.pid, FREE, Buffer.alloc(PAGE, 9));
      const made = await branch(vm);
      const zygote = await child(root, made);
      const forked = await shop.own(zygote.fork!({ directory: shop.directory(), tied: true }));
      await runsOn(forked, made.count);
      expect(guestCounter(zygote.pid)).toBe(made.count);
      expect(peekGuest(forked.pid, FREE, PAGE).equals(Buffer.alloc(PAGE, 9))).toBe(true);
      const again = await branch(forked);
      await counting(forked);
      const grandchild = await child(root, again);
      expect(guestCounter(grandchild.pid)).toBe(again.count);
      expect(peekGuest(grandchild.pid, FREE, PAGE).equals(Buffer.alloc(PAGE, 9))).toBe(true);
    });
}

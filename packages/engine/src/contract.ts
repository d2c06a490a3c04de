import { existsSync } from 'node:fs';
import { beforeAll, describe, expect, it } from 'vitest';
import { branching } from './branch-contract.js';
import type { Accel, Disk, Engine, Vm } from './engine.js';
import { forking } from './fork-contract.js';
import { buildCounter, eventually, guestCounter } from './guest-counter.js';
import { workshop } from './workshop.js';

export interface ContractSubject {
  /** Called once per accelerator. */
  engine: () => Engine;
  /** A Linux whose init is the forkd agent; the contract talks HTTP/2 to it no further than the first frame. */
  linux: () => Promise<{ kernel: string; initramfs: string }>;
}

const HTTP2_PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u0004\0\0\0\0\0', 'latin1');

/** Twenty frames that ask for an answer each. */
const HTTP2_PINGS = Buffer.concat(Array(20).fill(Buffer.from([0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8])));

/** What every engine must do. A driver's test file calls this once; the cases are the same for all. */
export function engineContract(name: string, subject: ContractSubject): void {
  describe(`${name}: engine contract`, () => {
    it('probe says what is available and why', async () => {
      const report = await subject.engine().probe();
      expect(report.available).toBe(true);
      expect(report.version).toMatch(/^\d+\.\d+/);
      for (const accel of Object.values(report.accels)) expect(accel.reason).not.toBe('');
    });

    it('auto names an accelerator that is usable', async () => {
      const engine = subject.engine();
      expect((await engine.probe()).accels[await engine.accel('auto')].usable).toBe(true);
    });

    describe('tcg, bare-metal guest', () => bareMetal(subject, 'tcg'));
    describe('kvm, bare-metal guest', () => bareMetal(subject, 'kvm'));
    describe('tcg, Linux', () => linux(subject, 'tcg'));
    describe('kvm, Linux', () => linux(subject, 'kvm'));
  });
}

/** Needs no operating system, so it runs under any KVM; the counter shows from outside what the guest does. */
function bareMetal(subject: ContractSubject, accel: Accel): void {
  const shop = workshop(subject.engine(), accel);
  const machine = { vcpus: 1, memoryMib: 64 };
  const payload = `${shop.root}/counter.elf`;
  beforeAll(() => void buildCounter(shop.root));
  const needs = (skip: (note: string) => void): void => {
    if (accel === 'kvm' && !existsSync('/dev/kvm')) skip('/dev/kvm is absent');
  };

  /** Boots, lets it count, saves; the count at the moment of the save. */
  const saved = async (at: string, disks: Disk[] = [], of = machine): Promise<number> => {
    const parent = await shop.boot(payload, of, undefined, at, disks);
    await eventually(() => expect(guestCounter(parent.pid)).toBeGreaterThan(1000));
    await parent.pause();
    await parent.save(`${at}/device.state`);
    const count = guestCounter(parent.pid);
    await parent.stop();
    return count;
  };

  it('a paused guest stands still and a resumed one goes on', async ({ skip }) => {
    needs(skip);
    const vm = await shop.boot(payload, machine);
    await eventually(() => expect(guestCounter(vm.pid)).toBeGreaterThan(1000));
    await vm.pause();
    const paused = guestCounter(vm.pid);
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(guestCounter(vm.pid)).toBe(paused);
    await vm.resume();
    await eventually(() => expect(guestCounter(vm.pid)).toBeGreaterThan(paused));
  });

  it('children continue from the saved moment, apart from each other and from the image', async ({ skip }) => {
    needs(skip);
    const at = shop.directory();
    const count = await saved(at);
    const [still, running] = await Promise.all([
      shop.restore(at, machine, { running: false }),
      shop.restore(at, machine),
    ]);
    await eventually(() => expect(guestCounter(running.pid)).toBeGreaterThan(count + 1000));
    await eventually(() => expect(guestCounter(still.pid)).toBe(count));
    await still.resume();
    await eventually(() => expect(guestCounter(still.pid)).toBeGreaterThan(count));
    const late = await shop.restore(at, machine, { running: false });
    await eventually(() => expect(guestCounter(late.pid)).toBe(count));
  });

  it('a VMM that is killed is reported, and calls on it fail with the reason', async ({ skip }) => {
    needs(skip);
    const vm = await shop.boot(payload, machine);
    process.kill(vm.pid, 'SIGKILL');
    expect((await vm.exited).signal).toBe(9);
    await expect(vm.pause()).rejects.toMatchObject({ code: 'vmm_exited' });
    await vm.stop();
  });

  it('a state file that is not one ends the child with a message', async ({ skip }) => {
    needs(skip);
    const at = shop.directory();
    await saved(at);
    const vm = await shop.restore(at, machine, { state: payload });
    const exit = await vm.exited;
    expect(exit.code).not.toBe(0);
    expect(exit.lastWords).not.toBe('');
  });

  describe('fork', () => forking(shop, accel, { machine, saved, needs }));
  describe('branch', () => branching(shop, accel, { machine, saved, needs }));
}

function linux(subject: ContractSubject, accel: Accel): void {
  const shop = workshop(subject.engine(), accel);
  const unusable = async (): Promise<string | undefined> => {
    const report = (await shop.engine.probe()).accels[accel];
    return report.usable ? undefined : report.reason;
  };

  for (const vcpus of [1, 4]) {
    it(`boots with ${vcpus} vCPU, is saved, and a child answers on the agent channel`, async ({ skip }) => {
      const reason = await unusable();
      if (reason) skip(reason);
      const { kernel, initramfs } = await subject.linux();
      const machine = { vcpus, memoryMib: 192 };
      const at = shop.directory();
      const parent = await shop.boot(kernel, machine, initramfs, at);
      await answers(parent);
      await parent.pause();
      await parent.save(`${at}/device.state`);
      await parent.stop();
      const children = await Promise.all([shop.restore(at, machine), shop.restore(at, machine)]);
      await Promise.all(children.map(answers));
      // The channel of one child can be cut and taken up again, even before the guest has noticed.
      await listens(children[0]!);
    });
  }

  it('a branch taken while the channel is busy is of one instant: its children answer', async ({ skip }) => {
    const reason = await unusable();
    if (reason) skip(reason);
    const { kernel, initramfs } = await subject.linux();
    const machine = { vcpus: 2, memoryMib: 192 };
    const at = shop.directory();
    const parent = await shop.boot(kernel, machine, initramfs, at);
    await answers(parent);
    await parent.pause();
    await parent.save(`${at}/device.state`);
    await parent.stop();
    const source = await shop.restore(at, machine);
    const channel = await source.channel();
    let heard = 0;
    channel.on('error', () => {}).on('data', (chunk) => (heard += chunk.length));
    channel.write(HTTP2_PREFACE);
    const flood = setInterval(() => channel.write(HTTP2_PINGS), 1);
    for (let time = 0; time < 5; time++) {
      await eventually(() => expect(heard).toBeGreaterThan(HTTP2_PINGS.length));
      const place = shop.directory();
      const { value: twin } = await source.guarded(() => source.freeze(`${place}/device.state`));
      await twin.capture(`${place}/memory.diff`);
      await twin[Symbol.asyncDispose]();
      heard = 0;
      const branch = { diff: `${place}/memory.diff`, state: `${place}/device.state` };
      await listens(await shop.restore(at, machine, branch));
    }
    clearInterval(flood);
    channel.destroy();
  });

  it('a wrong machine is refused before anything starts', async () => {
    const { kernel } = await subject.linux();
    await expect(shop.boot(kernel, { vcpus: 9, memoryMib: 64 })).rejects.toMatchObject({ code: 'invalid_request' });
    await expect(shop.boot(kernel, { vcpus: 1, memoryMib: 0 })).rejects.toMatchObject({ code: 'invalid_request' });
  });
}

/** Hails a guest that may be talking to somebody else, and waits for its answer. */
async function listens(vm: Vm): Promise<void> {
  const channel = await vm.channel();
  let heard = '';
  channel.on('error', () => {}).on('data', (chunk: Buffer) => (heard += chunk.toString('latin1')));
  channel.write('FORKD/1  0123456789abcdef\n');
  await eventually(() => expect(heard).toContain('FORKD/1 0123456789abcdef\n'));
  channel.destroy();
}

/** Sends what an HTTP/2 client sends first, and waits for the agent's first frame: its SETTINGS. */
async function answers(vm: Vm): Promise<void> {
  const channel = await vm.channel();
  channel.on('error', () => {});
  channel.write(HTTP2_PREFACE);
  const first = await new Promise<Buffer>((resolve, reject) => {
    channel.once('data', resolve);
    channel.once('close', () => reject(new Error(`the channel closed\n${vm.console()}`)));
  });
  channel.destroy();
  expect(first[3]).toBe(4);
}

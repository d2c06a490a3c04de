import { copyFile, readFile, rename, rm, stat, statfs, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { Duplex } from 'node:stream';
import {
  type AdoptSpec,
  type Captured,
  type CaptureOptions,
  type ForkPlacement,
  type FreezeOptions,
  type Guarded,
  type GuardOptions,
  type Nic,
  Phases,
  type Sleeper,
  type Twin,
  type Vm,
  type VmExit,
} from '@forkd/engine';
import type { ForkSpec, HostHelper, HostProcess, Uids } from '@forkd/host';
import { ForkdError, type Limits } from '@forkd/protocol';
import { z } from 'zod';
import { SOCKETS } from './arguments.js';
import { connectUnix } from './connect.js';
import { ConsoleLog } from './console-log.js';
import { Control } from './control.js';
import { sameInstant } from './device-state.js';
import type { QemuFiles } from './jail.js';
import { Pauses } from './pauses.js';
import { end, twinOf } from './twin.js';

/** Enough for QEMU's threads, disks and sockets; a VMM that wants more is not ours any more. */
const RLIMITS = { nofile: 256, core: 0 };

const MIB = 1 << 20;

/** Address space beside guest RAM: libraries, translated code, and the stacks and heaps of as many threads as it may have. */
const OWN_BYTES = 4096 * MIB;

/** A file that it writes besides its disks and its memory is never as large. */
const FILE_BYTES = 64 * MIB;

/** Where a VMM writes device state, in its own directory: it can write nowhere else. */
const SAVED = 'vmm.state';

/** More than the devices and CPUs of a VM take in a file. */
const STATE_BYTES = 1 << 20;

/** With this score a host short of memory ends a VM before it ends the daemon. */
const OOM_SCORE_ADJ = 500;

/** The report of a kernel that panics begins with why, and is about half as long. */
const LAST_WORDS = 6_000;
/** The exit of a VMM may be known before the last of its console has been read. */
const LAST_WORDS_MS = 200;

/** A VM that does not come to rest in a pause is taken as it is: the pause counts for more. */
const INSTANT_ATTEMPTS = 2;

/** A diff is loaded within a few milliseconds. */
const LOADED_POLL_MS = 1;

const Disks = z.array(z.object({ device: z.string() }));

export interface Launch {
  /** Whether its memory and its state are all in the process, so that the process can be copied. */
  forkable: boolean;
  argv: string[];
  memory: string;
  /** To be put over the memory before the devices are loaded from the descriptor `state`. */
  diff?: string;
  directory: string;
  tied: boolean;
  cgroups: string[];
  open: { name: string; path: string }[];
  nic?: Nic;
  /** The files it opens by itself. */
  read: string[];
  write: string[];
  devices: string[];
  memoryMib: number;
  jail?: QemuFiles & { uids: Uids };
}

interface Place extends Pick<Launch, 'memory' | 'directory'> {
  /** How it is forked; absent where it cannot be. */
  forking?: Forking;
}

type Forking = Pick<ForkSpec, 'jail'>;

interface Taking<T> {
  take(): Promise<T>;
  discard(taken: T): Promise<unknown>;
}

export class QemuVm implements Vm {
  readonly exited: Promise<VmExit>;
  readonly fork?: (placement: ForkPlacement) => Promise<QemuVm>;
  readonly forkAsleep?: () => Promise<Sleeper>;
  #helper: HostHelper;
  #process: HostProcess;
  #memory: string;
  #directory: string;
  #console = new ConsoleLog();
  #control: Control;
  #pauses: Pauses;

  static async launch(helper: HostHelper, launch: Launch): Promise<QemuVm> {
    const { directory, argv, tied, cgroups, open, diff, nic, jail, memory, forkable } = launch;
    const saved = `${directory}/${SAVED}`;
    // The parent's memory is a file that does not exist yet; one that does is not touched.
    for (const path of [saved, ...launch.write]) await writeFile(path, '', { mode: 0o644, flag: 'a' });
    const env = {
      // The helper looks the program up in this PATH: the same one in which the engine was probed.
      PATH: process.env.PATH ?? '/usr/bin:/bin',
      ...(jail && { LD_PRELOAD: jail.preload }),
    };
    const started = await helper.spawn({
      ...{ tied, cgroups, open, env },
      ...networkOf(nic),
      argv: jail ? [jail.program, ...argv.slice(1)] : argv,
      log: `${directory}/vmm.log`,
      listen: SOCKETS.map((name) => ({ name, path: `${directory}/${name}.sock` })),
      rlimits: { ...RLIMITS, as: launch.memoryMib * MIB + OWN_BYTES, fsize: await largestFile(launch) },
      oomScoreAdj: OOM_SCORE_ADJ,
      ...(jail && {
        jail: {
          ...{ uids: jail.uids, directory, devices: launch.devices },
          read: [...jail.files, ...launch.read],
          write: [saved, ...launch.write],
        },
      }),
    });
    const forking = forkable && { forking: jail ? { jail: jail.uids } : {} };
    const vm = await QemuVm.#of(helper, started, { memory, directory, ...forking });
    if (diff === undefined) return vm;
    try {
      await vm.#load(diff);
      return vm;
    } catch (failure) {
      await vm.stop();
      throw failure;
    }
  }

  static async adopt(helper: HostHelper, spec: AdoptSpec, forking: Forking | undefined): Promise<QemuVm> {
    const { pid, startTime, memory, directory } = spec;
    const process = await helper.adopt(pid, startTime);
    return QemuVm.#of(helper, process, { memory, directory, ...(forking && { forking }) });
  }

  static async #of(helper: HostHelper, process: HostProcess, place: Place): Promise<QemuVm> {
    const vm = new QemuVm(helper, process, place);
    await vm.#console.follow(`${place.directory}/console.sock`).catch(() => {});
    return vm;
  }

  private constructor(helper: HostHelper, process: HostProcess, { memory, directory, forking }: Place) {
    this.#helper = helper;
    this.#process = process;
    this.#memory = memory;
    this.#directory = directory;
    this.#control = new Control(`${directory}/qmp.sock`);
    this.#pauses = new Pauses(helper, process, this.#control);
    if (forking) {
      this.fork = (placement) => this.#fork(placement, forking);
      this.forkAsleep = () => this.#forkAsleep(forking);
    }
    this.exited = process.exited.then(async (exit) => ({ ...exit, lastWords: await this.#lastWords() }));
  }

  get pid(): number {
    return this.#process.pid;
  }

  get startTime(): number {
    return this.#process.startTime;
  }

  async channel(): Promise<Duplex> {
    return this.#alive(connectUnix(`${this.#directory}/agent.sock`));
  }

  console(): string {
    return this.#console.text();
  }

  async pause(): Promise<void> {
    await this.#alive(this.#pauses.pause());
  }

  async resume(): Promise<void> {
    await this.#alive(this.#pauses.resume());
  }

  guarded<T>(work: () => Promise<T>, options: GuardOptions = {}): Promise<Guarded<T>> {
    return this.#explained(this.#pauses.guarded(work, options));
  }

  freeze(state: string, { phases }: FreezeOptions = {}): Promise<Twin> {
    return this.#instant(state, phases, {
      take: async () => twinOf(this.#helper, await this.#helper.twin(this.#process, this.#memory), this.#memory),
      discard: async (twin) => twin[Symbol.asyncDispose](),
    });
  }

  capture(state: string, memory: string, { phases, ...how }: CaptureOptions = {}): Promise<Captured> {
    return this.#instant(state, phases, {
      take: () => this.#helper.capture(this.#process, this.#memory, memory, how),
      discard: () => rm(memory),
    });
  }

  async save(state: string): Promise<void> {
    // Unlike a migration this writes devices and CPUs only: guest RAM already is a file.
    // `live: false` keeps the disks in its hands: it may go on afterwards, or be saved again.
    const filename = `${this.#directory}/${SAVED}`;
    try {
      await this.#alive(this.#control.execute('xen-save-devices-state', { filename, live: false }));
      await copyFile(filename, state);
      if ((await stat(state)).size > STATE_BYTES)
        throw new ForkdError('guest_protocol', 'the VMM says that its devices are larger than those of a VM are');
    } catch (thrown) {
      // QEMU does not say which error of the disk it was.
      const { bavail, bsize } = await statfs(dirname(state));
      if (bavail * bsize > STATE_BYTES) throw thrown;
      throw new ForkdError('disk_full', 'the disk is full', { cause: thrown });
    }
  }

  async throttle(rates: Limits): Promise<void> {
    const { read_bps_limit = 0, write_bps_limit = 0, read_iops_limit = 0, write_iops_limit = 0 } = rates;
    const both = { bps: 0, iops: 0 };
    const apart = {
      bps_rd: read_bps_limit,
      bps_wr: write_bps_limit,
      iops_rd: read_iops_limit,
      iops_wr: write_iops_limit,
    };
    // In one group the disks share the rates.
    for (const { device } of Disks.parse(await this.#alive(this.#control.execute('query-block'))))
      await this.#alive(this.#control.execute('block_set_io_throttle', { device, group: 'all', ...both, ...apart }));
  }

  async stop(): Promise<void> {
    try {
      await this.#process.kill('SIGKILL');
      await this.#process.exited;
    } finally {
      this.leave();
    }
  }

  leave(): void {
    this.#console.close();
    this.#control.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  async #fork(placement: ForkPlacement, forking: Forking): Promise<QemuVm> {
    await this.#explained(this.#control.connected());
    // The copy inherits an open control connection: the one order it finds there makes it run.
    const orders = { 'qmp.sock': '{"execute":"cont"}\n' };
    const spec = await this.#copySpec(placement, forking, orders);
    const forked = await this.#explained(this.#helper.forkVmm(this.#process, spec));
    return QemuVm.#of(this.#helper, forked, { memory: this.#memory, directory: placement.directory, forking });
  }

  async #forkAsleep(forking: Forking): Promise<Sleeper> {
    const wakes = { jailed: forking.jail !== undefined };
    const twin = await this.#explained(this.#helper.twin(this.#process, this.#memory, wakes));
    let asleep = true;
    return {
      pid: twin.pid,
      wake: async (placement) => {
        asleep = false;
        await this.#helper.wake(twin, await this.#copySpec(placement, forking, {}));
        return QemuVm.#of(this.#helper, twin, { memory: this.#memory, directory: placement.directory, forking });
      },
      [Symbol.asyncDispose]: async () => {
        if (asleep) await end(twin);
      },
    };
  }

  /** How a copy gets what is its own, of which the files have to be there. */
  async #copySpec(
    { directory, tied, cgroups = [], nic }: ForkPlacement,
    { jail }: Forking,
    orders: Record<string, string>,
  ): Promise<ForkSpec> {
    for (const name of ['vmm.log', SAVED]) await writeFile(`${directory}/${name}`, '', { mode: 0o600 });
    const own = { from: this.#directory, to: directory, orders, tied, cgroups };
    return { ...own, ...networkOf(nic), ...(jail && { jail }) };
  }

  /** Puts a diff over the memory of a VM that waits for its devices, then loads those. */
  async #load(diff: string): Promise<void> {
    // It answers when it has made its machine, and with it the RAM.
    await this.#alive(this.#control.connected());
    await this.#alive(this.#helper.inject(this.#process, this.#memory, diff));
    await this.#alive(this.#control.execute('migrate-incoming', { uri: `fd:${this.#process.fds.state}` }));
    while ((await this.#alive(this.#control.status())).status === 'inmigrate')
      await new Promise((resolve) => setTimeout(resolve, LOADED_POLL_MS));
  }

  /**
   * Device state, and what is taken of the memory, at one instant. Nobody runs the guest, but what is in flight to it might
   * still reach its buffers; its devices then have moved on, and it is all done again. If they never rest, the state is the
   * one after the memory: a child lacks what was in flight, but finds no buffer used that its devices know nothing of.
   */
  async #instant<T>(state: string, phases = new Phases(), { take, discard }: Taking<T>): Promise<T> {
    const after = `${state}.after`;
    try {
      await phases.time('state', this.save(state));
      for (let attempt = 1; ; attempt++) {
        const taken = await phases.time('memory', this.#explained(take()));
        try {
          await phases.time('state', this.save(after));
          if (await sameInstant(state, after)) return taken;
          await rename(after, state);
          if (attempt === INSTANT_ATTEMPTS) return taken;
        } catch (failure) {
          await discard(taken);
          throw failure;
        }
        await discard(taken);
      }
    } finally {
      await rm(after, { force: true });
    }
  }

  /** A call that cannot end because the VMM is gone fails with what the VMM said last. */
  #alive<T>(call: Promise<T>): Promise<T> {
    return Promise.race([this.#explained(call), this.#gone()]);
  }

  /** The socket closes a moment before the helper reports the exit; prefer the exit, it says why. */
  async #explained<T>(call: Promise<T>): Promise<T> {
    try {
      return await call;
    } catch (error) {
      // Any other refusal is not about its end; a paused VM should not wait for nothing.
      if (error instanceof ForkdError && error.code !== 'vmm_exited') throw error;
      await Promise.race([this.#gone(), new Promise((resolve) => setTimeout(resolve, 200))]);
      throw error;
    }
  }

  async #gone(): Promise<never> {
    const exit = await this.exited;
    const how = exit.signal === null ? `with code ${exit.code}` : `by signal ${exit.signal}`;
    throw new ForkdError('vmm_exited', `QEMU ended ${how}\n${exit.lastWords}`.trimEnd());
  }

  async #lastWords(): Promise<string> {
    await this.#console.drained(LAST_WORDS_MS);
    const log = await readFile(`${this.#directory}/vmm.log`, 'utf8').catch(() => '');
    return `${log.slice(-LAST_WORDS)}${this.#console.text().slice(-LAST_WORDS)}`.trim();
  }
}

/** How large the largest file is that a VMM has to do with; none that it writes may become larger. */
async function largestFile({ write, memoryMib }: Launch): Promise<number> {
  const sizes = await Promise.all(write.map(async (path) => (await stat(path)).size));
  return Math.max(FILE_BYTES, memoryMib * MIB, ...sizes);
}

function networkOf(nic: Nic | undefined): { network?: number } {
  return nic && 'network' in nic.wire ? { network: nic.wire.network } : {};
}

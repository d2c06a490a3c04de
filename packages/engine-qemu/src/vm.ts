import { readFile, rename, rm, writeFile } from 'node:fs/promises';
import type { Duplex } from 'node:stream';
import type {
  AdoptSpec,
  Captured,
  CaptureOptions,
  ForkPlacement,
  Guarded,
  GuardOptions,
  Twin,
  Vm,
  VmExit,
} from '@forkd/engine';
import type { HostHelper, HostProcess } from '@forkd/host';
import { ForkdError } from '@forkd/protocol';
import { z } from 'zod';
import { SOCKETS } from './arguments.js';
import { connectUnix } from './connect.js';
import { ConsoleLog } from './console-log.js';
import { Qmp } from './qmp.js';
import { twinOf } from './twin.js';

/** Enough for QEMU's threads, disks and sockets; a VMM that wants more is not ours any more. */
const RLIMITS = { nofile: 256, core: 0 };

/** With this score a host short of memory ends a VM before it ends the daemon. */
const OOM_SCORE_ADJ = 500;

/** The report of a kernel that panics begins with why, and is about half as long. */
const LAST_WORDS = 6_000;
/** The exit of a VMM may be known before the last of its console has been read. */
const LAST_WORDS_MS = 200;

/** What the helper says to a VM that a program leaves behind in a guarded pause. */
const GO_ON = ['qmp_capabilities', 'cont'].map((execute) => JSON.stringify({ execute }));
const GUARD_TIMEOUT_MS = 60_000;
const GO_ON_ATTEMPTS = 3;

/** How often what is in flight to a paused guest may change its devices before it counts as a fault. */
const INSTANT_ATTEMPTS = 5;

/** A diff is loaded within a few milliseconds. */
const LOADED_POLL_MS = 1;

const Status = z.object({ status: z.string(), running: z.boolean() });

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
}

type Place = Pick<Launch, 'memory' | 'directory' | 'forkable'>;

interface Taking<T> {
  take(): Promise<T>;
  discard(taken: T): Promise<unknown>;
}

export class QemuVm implements Vm {
  readonly exited: Promise<VmExit>;
  readonly fork?: (placement: ForkPlacement) => Promise<QemuVm>;
  #helper: HostHelper;
  #process: HostProcess;
  #memory: string;
  #directory: string;
  #console = new ConsoleLog();
  #qmp: Promise<Qmp> | undefined;
  #turns: Promise<unknown> = Promise.resolve();

  static async launch(helper: HostHelper, launch: Launch): Promise<QemuVm> {
    const { directory, argv, tied, cgroups, open, diff } = launch;
    const started = await helper.spawn({
      ...{ argv, tied, cgroups, open },
      // The helper looks the program up in this PATH: the same one in which the engine was probed.
      env: { PATH: process.env.PATH ?? '/usr/bin:/bin' },
      log: `${directory}/vmm.log`,
      listen: SOCKETS.map((name) => ({ name, path: `${directory}/${name}.sock` })),
      rlimits: RLIMITS,
      oomScoreAdj: OOM_SCORE_ADJ,
    });
    const vm = await QemuVm.#of(helper, started, launch);
    if (diff === undefined) return vm;
    try {
      await vm.#load(diff);
      return vm;
    } catch (failure) {
      await vm.stop();
      throw failure;
    }
  }

  static async adopt(helper: HostHelper, spec: AdoptSpec): Promise<QemuVm> {
    const { pid, startTime, machine, memory, directory } = spec;
    const process = await helper.adopt(pid, startTime);
    return QemuVm.#of(helper, process, { memory, directory, forkable: machine.accel === 'tcg' });
  }

  static async #of(helper: HostHelper, process: HostProcess, place: Place): Promise<QemuVm> {
    const vm = new QemuVm(helper, process, place);
    await vm.#console.follow(`${place.directory}/console.sock`).catch(() => {});
    return vm;
  }

  private constructor(helper: HostHelper, process: HostProcess, { memory, directory, forkable }: Place) {
    this.#helper = helper;
    this.#process = process;
    this.#memory = memory;
    this.#directory = directory;
    if (forkable) this.fork = (placement) => this.#fork(placement);
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
    await this.#inTurn(() => this.#execute('stop'));
  }

  async resume(): Promise<void> {
    await this.#inTurn(() => this.#execute('cont'));
  }

  guarded<T>(work: () => Promise<T>, options: GuardOptions = {}): Promise<Guarded<T>> {
    const limit = AbortSignal.timeout(options.timeoutMs ?? GUARD_TIMEOUT_MS);
    const signal = AbortSignal.any(options.signal ? [options.signal, limit] : [limit]);
    return this.#inTurn(async () => {
      signal.throwIfAborted();
      if (!(await this.#status()).running) return { value: await unlessAborted(work(), signal), pauseMs: 0 };
      await this.#helper.guard(this.#process, `${this.#directory}/qmp.sock`, GO_ON);
      try {
        return await this.#paused(work, signal);
      } finally {
        await this.#helper.unguard(this.#process).catch(() => {});
      }
    });
  }

  freeze(state: string): Promise<Twin> {
    return this.#instant(state, {
      take: async () => twinOf(this.#helper, await this.#helper.twin(this.#process, this.#memory), this.#memory),
      discard: async (twin) => twin[Symbol.asyncDispose](),
    });
  }

  capture(state: string, memory: string, { full = false }: CaptureOptions = {}): Promise<Captured> {
    return this.#instant(state, {
      take: () => this.#helper.capture(this.#process, this.#memory, memory, full),
      discard: () => rm(memory),
    });
  }

  async save(state: string): Promise<void> {
    // Unlike a migration this writes devices and CPUs only: guest RAM already is a file.
    // `live: false` keeps the disks in its hands: it may go on afterwards, or be saved again.
    await this.#execute('xen-save-devices-state', { filename: state, live: false });
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
    void this.#qmp?.then(
      (qmp) => qmp.close(),
      () => {},
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  async #fork({ directory, tied, cgroups = [] }: ForkPlacement): Promise<QemuVm> {
    await this.#explained(this.#control());
    await writeFile(`${directory}/vmm.log`, '', { mode: 0o600 });
    const forking = this.#helper.forkVmm(this.#process, {
      from: this.#directory,
      to: directory,
      // The copy inherits an open control connection: the one order it finds there makes it run.
      orders: { 'qmp.sock': '{"execute":"cont"}\n' },
      tied,
      cgroups,
    });
    const place = { memory: this.#memory, directory, forkable: true };
    return QemuVm.#of(this.#helper, await this.#explained(forking), place);
  }

  /** Puts a diff over the memory of a VM that waits for its devices, then loads those. */
  async #load(diff: string): Promise<void> {
    // It answers when it has made its machine, and with it the RAM.
    await this.#status();
    await this.#alive(this.#helper.inject(this.#process, this.#memory, diff));
    await this.#execute('migrate-incoming', { uri: `fd:${this.#process.fds.state}` });
    while ((await this.#status()).status === 'inmigrate')
      await new Promise((resolve) => setTimeout(resolve, LOADED_POLL_MS));
  }

  async #paused<T>(work: () => Promise<T>, signal: AbortSignal): Promise<Guarded<T>> {
    const since = performance.now();
    try {
      const working = this.#execute('stop').then(() => {
        signal.throwIfAborted();
        return work();
      });
      const value = await unlessAborted(working, signal);
      await this.#goOn();
      return { value, pauseMs: performance.now() - since };
    } catch (failure) {
      await this.#goOn();
      throw failure;
    }
  }

  /** A control connection that failed is made anew. */
  async #goOn(): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      try {
        return void (await this.#execute('cont'));
      } catch (failure) {
        if (attempt === GO_ON_ATTEMPTS) throw failure;
      }
    }
  }

  /**
   * Device state, and what is taken of the memory, at one instant. Nobody runs the guest, but what is in flight to it still
   * arrives in its buffers; its devices then have moved on, and it is all done again.
   */
  async #instant<T>(state: string, { take, discard }: Taking<T>): Promise<T> {
    const after = `${state}.after`;
    try {
      await this.save(state);
      for (let attempt = 1; attempt <= INSTANT_ATTEMPTS; attempt++) {
        const taken = await this.#explained(take());
        const still = await this.save(after)
          .then(() => same(state, after))
          .catch(async (failure) => {
            await discard(taken);
            throw failure;
          });
        if (still) return taken;
        await discard(taken);
        await rename(after, state);
      }
      throw new ForkdError('state_conflict', 'the paused VM does not come to rest');
    } finally {
      await rm(after, { force: true });
    }
  }

  /** Those who pause or resume it wait for each other. */
  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#turns.then(work);
    this.#turns = result.catch(() => {});
    return result;
  }

  /** Connected on first use: most children live and die without a single control command. */
  #control(): Promise<Qmp> {
    if (this.#qmp !== undefined) return this.#qmp;
    const connecting = Qmp.connect(`${this.#directory}/qmp.sock`);
    const forget = (): void => {
      if (this.#qmp === connecting) this.#qmp = undefined;
    };
    connecting.then((qmp) => qmp.closed).then(forget, forget);
    this.#qmp = connecting;
    return connecting;
  }

  async #status(): Promise<z.infer<typeof Status>> {
    return Status.parse(await this.#execute('query-status'));
  }

  #execute(command: string, args: Record<string, unknown> = {}): Promise<unknown> {
    return this.#alive(this.#control().then((qmp) => qmp.execute(command, args)));
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

/** Whether two files have the same content. */
async function same(a: string, b: string): Promise<boolean> {
  const [first, second] = await Promise.all([readFile(a), readFile(b)]);
  return first.equals(second);
}

/** Does not wait any longer once the signal says so; what becomes of the work is then nobody's concern. */
async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  let stop: () => void = () => {};
  const aborted = new Promise<never>((_, reject) => {
    stop = () => reject(signal.reason);
    signal.addEventListener('abort', stop, { once: true });
  });
  try {
    return await Promise.race([work, aborted]);
  } finally {
    signal.removeEventListener('abort', stop);
  }
}

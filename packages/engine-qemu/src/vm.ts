import { readFile, writeFile } from 'node:fs/promises';
import type { Duplex } from 'node:stream';
import type { AdoptSpec, ForkPlacement, Vm, VmExit } from '@forkd/engine';
import type { HostHelper, HostProcess } from '@forkd/host';
import { ForkdError } from '@forkd/protocol';
import { SOCKETS } from './arguments.js';
import { connectUnix } from './connect.js';
import { ConsoleLog } from './console-log.js';
import { Qmp } from './qmp.js';

/** Enough for QEMU's threads, disks and sockets; a VMM that wants more is not ours any more. */
const RLIMITS = { nofile: 256, core: 0 };

/** With this score a host short of memory ends a VM before it ends the daemon. */
const OOM_SCORE_ADJ = 500;

/** The report of a kernel that panics begins with why, and is about half as long. */
const LAST_WORDS = 6_000;
/** The exit of a VMM may be known before the last of its console has been read. */
const LAST_WORDS_MS = 200;

export interface Launch {
  /** Whether its memory and its state are all in the process, so that the process can be copied. */
  forkable: boolean;
  argv: string[];
  directory: string;
  tied: boolean;
  cgroups: string[];
  open: { name: string; path: string }[];
}

export class QemuVm implements Vm {
  readonly exited: Promise<VmExit>;
  readonly fork?: (placement: ForkPlacement) => Promise<QemuVm>;
  #process: HostProcess;
  #directory: string;
  #console = new ConsoleLog();
  #qmp: Promise<Qmp> | undefined;

  static async launch(helper: HostHelper, launch: Launch): Promise<QemuVm> {
    const { directory, forkable: _, ...what } = launch;
    const started = await helper.spawn({
      ...what,
      // The helper looks the program up in this PATH: the same one in which the engine was probed.
      env: { PATH: process.env.PATH ?? '/usr/bin:/bin' },
      log: `${directory}/vmm.log`,
      listen: SOCKETS.map((name) => ({ name, path: `${directory}/${name}.sock` })),
      rlimits: RLIMITS,
      oomScoreAdj: OOM_SCORE_ADJ,
    });
    return QemuVm.#of(helper, started, launch);
  }

  static async adopt(helper: HostHelper, { pid, startTime, machine, directory }: AdoptSpec): Promise<QemuVm> {
    const process = await helper.adopt(pid, startTime);
    return QemuVm.#of(helper, process, { directory, forkable: machine.accel === 'tcg' });
  }

  static async #of(
    helper: HostHelper,
    process: HostProcess,
    place: Pick<Launch, 'directory' | 'forkable'>,
  ): Promise<QemuVm> {
    const vm = new QemuVm(helper, process, place);
    await vm.#console.follow(`${place.directory}/console.sock`).catch(() => {});
    return vm;
  }

  private constructor(
    helper: HostHelper,
    process: HostProcess,
    { directory, forkable }: Pick<Launch, 'directory' | 'forkable'>,
  ) {
    this.#process = process;
    this.#directory = directory;
    if (forkable) this.fork = (placement) => this.#fork(helper, placement);
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
    await this.#execute('stop');
  }

  async resume(): Promise<void> {
    await this.#execute('cont');
  }

  async save(state: string): Promise<void> {
    // Unlike a migration this writes devices and CPUs only: guest RAM already is a file.
    await this.#execute('xen-save-devices-state', { filename: state });
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

  async #fork(helper: HostHelper, { directory, tied, cgroups = [] }: ForkPlacement): Promise<QemuVm> {
    await this.#explained(this.#control());
    await writeFile(`${directory}/vmm.log`, '', { mode: 0o600 });
    const forking = helper.forkVmm(this.#process, {
      from: this.#directory,
      to: directory,
      // The copy inherits an open control connection: the one order it finds there makes it run.
      orders: { 'qmp.sock': '{"execute":"cont"}\n' },
      tied,
      cgroups,
    });
    return QemuVm.#of(helper, await this.#explained(forking), { directory, forkable: true });
  }

  /** Connected on first use: most children live and die without a single control command. */
  #control(): Promise<Qmp> {
    this.#qmp ??= Qmp.connect(`${this.#directory}/qmp.sock`);
    return this.#qmp;
  }

  async #execute(command: string, args: Record<string, unknown> = {}): Promise<void> {
    await this.#alive(this.#control().then((qmp) => qmp.execute(command, args)));
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

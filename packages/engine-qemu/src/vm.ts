import { readFile, writeFile } from 'node:fs/promises';
import type { Duplex } from 'node:stream';
import type { Accel, ForkPlacement, Vm, VmExit } from '@forkd/engine';
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

const LAST_WORDS = 2_000;

export interface Launch {
  accel: Accel;
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
    const { directory, accel: _, ...what } = launch;
    const process = await helper.spawn({
      ...what,
      env: { PATH: '/usr/bin:/bin' },
      log: `${directory}/vmm.log`,
      listen: SOCKETS.map((name) => ({ name, path: `${directory}/${name}.sock` })),
      rlimits: RLIMITS,
      oomScoreAdj: OOM_SCORE_ADJ,
    });
    return QemuVm.#of(helper, process, launch);
  }

  static async #of(
    helper: HostHelper,
    process: HostProcess,
    place: Pick<Launch, 'directory' | 'accel'>,
  ): Promise<QemuVm> {
    const vm = new QemuVm(helper, process, place);
    await vm.#console.follow(`${place.directory}/console.sock`).catch(() => {});
    return vm;
  }

  private constructor(
    helper: HostHelper,
    process: HostProcess,
    { directory, accel }: Pick<Launch, 'directory' | 'accel'>,
  ) {
    this.#process = process;
    this.#directory = directory;
    // KVM keeps the VM in the kernel, bound to the one process that made it.
    if (accel === 'tcg') this.fork = (placement) => this.#fork(helper, placement);
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
    await this.#process.kill('SIGKILL');
    await this.#process.exited;
    this.#console.close();
    await this.#qmp?.then(
      (qmp) => qmp.close(),
      () => {},
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  async #fork(helper: HostHelper, { directory, tied, cgroups = [] }: ForkPlacement): Promise<QemuVm> {
    await this.#control();
    await writeFile(`${directory}/vmm.log`, '', { mode: 0o600 });
    const process = await helper.forkVmm(this.#process, {
      from: this.#directory,
      to: directory,
      // The copy inherits an open control connection: the one order it finds there makes it run.
      orders: { 'qmp.sock': '{"execute":"cont"}\n' },
      tied,
      cgroups,
    });
    return QemuVm.#of(helper, process, { directory, accel: 'tcg' });
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
    const gone = this.exited.then((exit) => {
      const how = exit.signal === null ? `with code ${exit.code}` : `by signal ${exit.signal}`;
      throw new ForkdError('vmm_exited', `QEMU ended ${how}\n${exit.lastWords}`.trimEnd());
    });
    return Promise.race([
      call.catch(async (error) => {
        // The socket closes a moment before the helper reports the exit; prefer the exit, it says why.
        await Promise.race([gone, new Promise((resolve) => setTimeout(resolve, 200))]);
        throw error;
      }),
      gone,
    ]);
  }

  async #lastWords(): Promise<string> {
    const log = await readFile(`${this.#directory}/vmm.log`, 'utf8').catch(() => '');
    return `${log.slice(-LAST_WORDS)}${this.#console.text().slice(-LAST_WORDS)}`.trim();
  }
}

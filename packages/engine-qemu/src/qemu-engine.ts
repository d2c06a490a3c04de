import { execFile } from 'node:child_process';
import { tmpdir } from 'node:os';
import { basename, resolve } from 'node:path';
import { promisify } from 'node:util';
import type {
  Accel,
  AccelReport,
  AdoptSpec,
  BootSpec,
  Engine,
  Machine,
  ProbeReport,
  RestoreSpec,
  Vm,
} from '@forkd/engine';
import type { HostHelper, Uids } from '@forkd/host';
import { ForkdError } from '@forkd/protocol';
import { bootArguments, restoreArguments } from './arguments.js';
import { JAIL_UIDS, type QemuFiles, qemuFiles } from './jail.js';
import { proveKvm } from './kvm-proof.js';
import { type Launch, QemuVm } from './vm.js';

const OLDEST = [7, 2] as const;

/** The longest path a Unix socket may have, and the longest name the engine puts in a VM's directory. */
const SOCKET_PATH_MAX = 107 - '/console.sock'.length;

export interface QemuOptions {
  helper: HostHelper;
  /** @default qemu-system-x86_64, looked up in PATH */
  binary?: string;
  /** A kernel and initramfs whose init prints the agent's first line: running it is what proves KVM. */
  proof?: { kernel: string; initramfs: string };
  /** Where the outcome of that proof is remembered until the host boots again. */
  cache?: string;
  /** Where the guest of that proof is run. @default the host's directory for temporary files */
  scratch?: string;
  /** Whom jailed VMMs run as; `none`: they run as root and in no jail. @default JAIL_UIDS */
  jail?: Uids | 'none';
}

export class QemuEngine implements Engine {
  readonly kind = 'qemu';
  #options: QemuOptions;
  #binary: string;
  #report: Promise<ProbeReport> | undefined;
  #tscKhz: Promise<number> | undefined;
  #files: Promise<QemuFiles> | undefined;

  constructor(options: QemuOptions) {
    this.#options = options;
    this.#binary = options.binary ?? 'qemu-system-x86_64';
  }

  probe(): Promise<ProbeReport> {
    this.#report ??= this.#probe();
    return this.#report;
  }

  async accel(wanted: Accel | 'auto'): Promise<Accel> {
    const report = await this.probe();
    if (!report.available)
      throw new ForkdError('engine_unavailable', report.reason, { hint: 'apt-get install qemu-system-x86' });
    if (wanted === 'auto') return report.accels.kvm.usable ? 'kvm' : 'tcg';
    if (!report.accels[wanted].usable) throw new ForkdError('engine_unavailable', report.accels[wanted].reason);
    return wanted;
  }

  /** Some builds of QEMU are without it. */
  async userNetwork(): Promise<AccelReport> {
    try {
      const { stdout } = await promisify(execFile)(this.#binary, ['-netdev', 'help'], { timeout: 10_000 });
      const usable = /^user$/m.test(stdout);
      return {
        usable,
        reason: usable ? 'QEMU has a network of its own' : 'QEMU was built without a network of its own',
      };
    } catch {
      return { usable: false, reason: `${this.#binary} is not installed or does not run` };
    }
  }

  async boot(given: BootSpec): Promise<Vm> {
    const spec = absolute(given);
    checkSpec(spec);
    this.#tscKhz ??= this.#options.helper.measureTscKhz();
    // Its memory is mapped from a file that all copies would write to.
    const argv = bootArguments(this.#binary, spec, await this.#tscKhz);
    const read = [spec.kernel, ...(spec.initramfs ? [spec.initramfs] : [])];
    return this.#launch(spec, { argv, forkable: false, read, write: [spec.memory] });
  }

  async restore(given: RestoreSpec): Promise<Vm> {
    const spec = absolute(given);
    checkSpec(spec);
    const open = [{ name: 'state', path: spec.state }];
    const diff = spec.diff === undefined ? {} : { diff: spec.diff };
    const argv = restoreArguments(this.#binary, spec);
    return this.#launch(spec, {
      argv,
      forkable: forkable(spec.machine),
      open,
      ...diff,
      read: [spec.memory],
      write: [],
    });
  }

  adopt(spec: AdoptSpec): Promise<Vm> {
    const { jail = JAIL_UIDS } = this.#options;
    const forking = forkable(spec.machine) ? (jail === 'none' ? {} : { jail }) : undefined;
    return QemuVm.adopt(this.#options.helper, spec, forking);
  }

  runs(executable: string): boolean {
    return basename(executable).startsWith('qemu-system-');
  }

  async #launch(
    { machine, disks, memory, directory, tied, cgroups = [], nic }: BootSpec | RestoreSpec,
    { read, write, ...how }: Pick<Launch, 'argv' | 'forkable' | 'diff'> & Partial<Pick<Launch, 'open'>> & Files,
  ): Promise<QemuVm> {
    const paths = (readOnly: boolean) => disks.filter((disk) => disk.readOnly === readOnly).map(({ path }) => path);
    const devices = machine.accel === 'kvm' ? ['/dev/kvm'] : [];
    const files = { read: [...read, ...paths(true)], write: [...write, ...paths(false)], devices };
    const place = { memory, directory, tied, cgroups, open: [], memoryMib: machine.memoryMib, ...(nic && { nic }) };
    const jail = await this.#jail();
    return QemuVm.launch(this.#options.helper, { ...place, ...how, ...files, ...(jail && { jail }) });
  }

  async #jail(): Promise<Launch['jail']> {
    const { jail: uids = JAIL_UIDS } = this.#options;
    if (uids === 'none') return undefined;
    this.#files ??= qemuFiles(this.#binary);
    return { uids, ...(await this.#files) };
  }

  async #probe(): Promise<ProbeReport> {
    const version = await qemuVersion(this.#binary);
    if (typeof version === 'string') return unavailable(null, version);
    const [major, minor] = version;
    const name = version.join('.');
    if (major < OLDEST[0] || (major === OLDEST[0] && minor < OLDEST[1]))
      return unavailable(name, `QEMU ${name} is older than ${OLDEST.join('.')}`);
    return {
      available: true,
      version: name,
      reason: `QEMU ${name}`,
      accels: { kvm: await this.#kvm(name), tcg: { usable: true, reason: 'software emulation runs everywhere' } },
    };
  }

  async #kvm(version: string): Promise<AccelReport> {
    const { proof, cache, scratch = tmpdir() } = this.#options;
    if (!proof) return { usable: false, reason: 'KVM was not tried: no guest kernel to prove it with' };
    const boot = (spec: BootSpec): Promise<Vm> => this.boot(spec);
    return proveKvm({ version, proof, scratch, ...(cache === undefined ? {} : { cache }), boot });
  }
}

/** KVM keeps a VM in the kernel, bound to the one process that made it. */
function forkable({ accel }: Machine): boolean {
  return accel === 'tcg';
}

type Files = Pick<Launch, 'read' | 'write'>;

/** A jailed VMM has another working directory than this program. */
function absolute<T extends BootSpec | RestoreSpec>(spec: T): T {
  const names = ['memory', 'directory', 'kernel', 'initramfs', 'state', 'diff'] as const;
  const given = spec as Partial<Record<(typeof names)[number], string>>;
  const paths = names.flatMap((name) => (given[name] === undefined ? [] : [[name, resolve(given[name])]]));
  const disks = spec.disks.map((disk) => ({ ...disk, path: resolve(disk.path) }));
  return { ...spec, ...Object.fromEntries(paths), disks };
}

function unavailable(version: string | null, reason: string): ProbeReport {
  const accel = { usable: false, reason };
  return { available: false, version, reason, accels: { kvm: accel, tcg: accel } };
}

/** The version, or why there is none. */
async function qemuVersion(binary: string): Promise<[number, number, number] | string> {
  try {
    const { stdout } = await promisify(execFile)(binary, ['--version'], { timeout: 10_000 });
    const match = /version (\d+)\.(\d+)\.(\d+)/.exec(stdout);
    return match ? [Number(match[1]), Number(match[2]), Number(match[3])] : `${binary} does not say its version`;
  } catch {
    return `${binary} is not installed or does not run`;
  }
}

function checkSpec({ machine, directory }: BootSpec | RestoreSpec): void {
  if (!Number.isInteger(machine.vcpus) || machine.vcpus < 1 || machine.vcpus > 8)
    throw new ForkdError('invalid_request', `vcpus is 1 to 8, not ${machine.vcpus}`);
  if (!Number.isInteger(machine.memoryMib) || machine.memoryMib < 16)
    throw new ForkdError('invalid_request', `memory is at least 16 MiB, not ${machine.memoryMib}`);
  if (Buffer.byteLength(directory) > SOCKET_PATH_MAX)
    throw new ForkdError('host_unfit', 'the directory of a VM is too long a path for a Unix socket', {
      hint: 'Point FORKD_DATA at a directory with a shorter path.',
      details: { directory },
    });
}

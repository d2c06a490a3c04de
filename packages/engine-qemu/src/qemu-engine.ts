import { execFile } from 'node:child_process';
import { basename } from 'node:path';
import { promisify } from 'node:util';
import type { Accel, AccelReport, AdoptSpec, BootSpec, Engine, ProbeReport, RestoreSpec, Vm } from '@forkd/engine';
import type { HostHelper } from '@forkd/host';
import { ForkdError } from '@forkd/protocol';
import { bootArguments, restoreArguments } from './arguments.js';
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
}

export class QemuEngine implements Engine {
  readonly kind = 'qemu';
  #options: QemuOptions;
  #binary: string;
  #report: Promise<ProbeReport> | undefined;
  #tscKhz: Promise<number> | undefined;

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

  async boot(spec: BootSpec): Promise<Vm> {
    checkSpec(spec);
    this.#tscKhz ??= this.#options.helper.measureTscKhz();
    // Its memory is mapped from a file that all copies would write to.
    return this.#launch(spec, { argv: bootArguments(this.#binary, spec, await this.#tscKhz), forkable: false });
  }

  async restore(spec: RestoreSpec): Promise<Vm> {
    checkSpec(spec);
    // KVM keeps the VM in the kernel, bound to the one process that made it.
    const forkable = spec.machine.accel === 'tcg';
    const open = [{ name: 'state', path: spec.state }];
    const diff = spec.diff === undefined ? {} : { diff: spec.diff };
    return this.#launch(spec, { argv: restoreArguments(this.#binary, spec), forkable, open, ...diff });
  }

  adopt(spec: AdoptSpec): Promise<Vm> {
    return QemuVm.adopt(this.#options.helper, spec);
  }

  runs(executable: string): boolean {
    return basename(executable).startsWith('qemu-system-');
  }

  #launch(
    { memory, directory, tied, cgroups = [], nic }: BootSpec | RestoreSpec,
    how: Pick<Launch, 'argv' | 'forkable' | 'diff'> & Partial<Pick<Launch, 'open'>>,
  ): Promise<QemuVm> {
    return QemuVm.launch(this.#options.helper, {
      memory,
      directory,
      tied,
      cgroups,
      open: [],
      ...(nic && { nic }),
      ...how,
    });
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
    const { proof, cache } = this.#options;
    if (!proof) return { usable: false, reason: 'KVM was not tried: no guest kernel to prove it with' };
    return proveKvm({ version, proof, ...(cache === undefined ? {} : { cache }), boot: (spec) => this.boot(spec) });
  }
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

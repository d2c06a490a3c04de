import type { Duplex } from 'node:stream';
import type { Captured } from '@forkd/host';
import type { Limits } from '@forkd/protocol';
import type { Phases } from './phases.js';

export type Accel = 'kvm' | 'tcg';

/** What a VM looks like from inside. A snapshot can only be restored into the machine it was saved from. */
export interface Machine {
  vcpus: number;
  memoryMib: number;
  accel: Accel;
}

export interface Disk {
  path: string;
  readOnly: boolean;
}

/** The one network device of a VM. */
export interface Nic {
  mac: string;
  /** Where it ends: at the tap of a network of the host helper, or in the VMM, which plays a gateway with nothing behind it. */
  wire: { network: number } | { guest4: string; gateway4: string; gateway6: string };
}

interface Placement {
  machine: Machine;
  /** In guest order: the first is /dev/vda. */
  disks: Disk[];
  /** An existing empty directory for this VM's sockets and log. */
  directory: string;
  /** `true`: the VM dies with the program that started it. */
  tied: boolean;
  cgroups?: string[];
  /** A snapshot has the device or has it not: restored is what was saved. */
  nic?: Nic;
}

export interface BootSpec extends Placement {
  kernel: string;
  initramfs?: string;
  /** Appended to what the engine needs on the kernel command line. */
  cmdline?: string[];
  /** Guest RAM becomes this file. */
  memory: string;
}

export interface RestoreSpec extends Placement {
  /** Mapped privately: every child shares the pages of this one inode until it writes them. */
  memory: string;
  /** What `capture` wrote of a VM with this memory: the child goes on from there. */
  diff?: string;
  /** What `save`, `freeze` or `capture` wrote. */
  state: string;
  /** `false`: the VM stands still until `resume`. */
  running: boolean;
}

export interface ForkPlacement {
  /** Holds a copy of every writable disk of the original, under the same file name. */
  directory: string;
  tied: boolean;
  cgroups?: string[];
  /** Exactly if the original has one. */
  nic?: Nic;
}

export interface VmExit {
  code: number | null;
  signal: number | null;
  /** The last lines the VMM and the guest console printed, for people. */
  lastWords: string;
}

/** Guest RAM as it was at one instant, while the VM goes on. It takes the more memory the more the VM writes. */
export interface Twin extends AsyncDisposable {
  readonly pid: number;
  /** Writes what differs from the memory image the VM was restored from. An abort ends the twin. */
  capture(to: string, signal?: AbortSignal): Promise<Captured>;
}

/** A copy of a VM that stands where the VM stood, and can go on from there. */
export interface Sleeper extends AsyncDisposable {
  readonly pid: number;
  /** A VM of its own, paused. One that fails to wake is gone. */
  wake(placement: ForkPlacement): Promise<Vm>;
}

export interface FreezeOptions {
  /** Takes the times of `state` and `memory`. */
  phases?: Phases;
}

export interface CaptureOptions extends FreezeOptions {
  /** A memory image that needs no other. */
  full?: boolean;
  /** Nobody stands still for it: those who run come first. */
  background?: boolean;
}

export interface GuardOptions {
  signal?: AbortSignal;
  /** @default 60_000 */
  timeoutMs?: number;
  /** Takes the times of `stop` and `resume`. */
  phases?: Phases;
}

export interface Vm extends AsyncDisposable {
  readonly pid: number;
  /** With the pid, names the VMM process for ever. */
  readonly startTime: number;
  readonly exited: Promise<VmExit>;
  /** A new connection to the agent's byte channel. The channel carries one at a time: end the old one first. */
  channel(): Promise<Duplex>;
  /** The most recent console output, bounded. */
  console(): string;
  pause(): Promise<void>;
  resume(): Promise<void>;
  /** Writes CPU and device state. Only while paused; guest RAM is then complete in the memory file of a booted VM. */
  save(state: string): Promise<void>;
  /**
   * Stands still for the length of `work` and then runs on, whatever happens: `work` fails, is aborted, takes too long, or this
   * program is killed. A VM that stood still before still does afterwards. Others that want to pause, resume or guard the VM wait.
   */
  guarded<T>(work: () => Promise<T>, options?: GuardOptions): Promise<Guarded<T>>;
  /** Writes CPU and device state, and keeps guest RAM of the same instant. Only in `guarded`, or while paused. */
  freeze(state: string, options?: FreezeOptions): Promise<Twin>;
  /** Writes CPU and device state, and what guest RAM of the same instant differs in from the image. Only as `freeze`. */
  capture(state: string, memory: string, options?: CaptureOptions): Promise<Captured>;
  /**
   * Makes a second VM that goes on from where this paused one stands, sharing its memory and what the emulator has
   * learnt of the guest's code. Absent where the accelerator keeps state that a process cannot copy.
   */
  fork?(placement: ForkPlacement): Promise<Vm>;
  /** The first half of a fork, for a VM that should not stand still for all of it. Only in `guarded`, or while paused. */
  forkAsleep?(): Promise<Sleeper>;
  /** Holds what the guest reads from its disks and writes to them to these rates, also where the host only remembers it. */
  throttle?(rates: Limits): Promise<void>;
  /** Ends the VM at once. Safe to call again. */
  stop(): Promise<void>;
  /** Lets go of the VM without ending it: it can be adopted again. */
  leave(): void;
}

export interface Guarded<T> {
  value: T;
  /** From the order to stop until it ran again; 0 for one that stood still anyway. */
  pauseMs: number;
}

/** A VM that an earlier program started untied. */
export interface AdoptSpec {
  machine: Machine;
  /** The memory image it was restored from. */
  memory: string;
  directory: string;
  pid: number;
  startTime: number;
}

export interface AccelReport {
  usable: boolean;
  /** Why, in words: shown by doctor and on failure. */
  reason: string;
}

export interface ProbeReport {
  available: boolean;
  version: string | null;
  reason: string;
  accels: Record<Accel, AccelReport>;
}

export interface Engine {
  readonly kind: string;
  /** What this engine can do on this host, and why not. Never throws. */
  probe(): Promise<ProbeReport>;
  /** The accelerator `auto` stands for here, or the wanted one; throws `engine_unavailable` with the reason. */
  accel(wanted: Accel | 'auto'): Promise<Accel>;
  /** Whether it can play the gateway of a VM itself, where the host can make no tap. Never throws. */
  userNetwork(): Promise<AccelReport>;
  boot(spec: BootSpec): Promise<Vm>;
  restore(spec: RestoreSpec): Promise<Vm>;
  /** Takes hold of a running VM; throws `vmm_exited` if it is gone. */
  adopt(spec: AdoptSpec): Promise<Vm>;
  /** Whether a program, by the name of its executable, is a VMM of this engine. */
  runs(executable: string): boolean;
}

import { type ChildProcess, spawn } from 'node:child_process';
import { constants } from 'node:os';
import type { Duplex } from 'node:stream';
import { type ErrorCode, ForkdError } from '@forkd/protocol';
import type { z } from 'zod';
import {
  Captured,
  Cloned,
  Compared,
  Done,
  Drops,
  type ForkSpec,
  HelperLine,
  Injected,
  Killed,
  Network,
  type ProcessExit,
  Spawned,
  type SpawnSpec,
  Tsc,
} from './helper-protocol.js';
import { nativeBinary } from './native-binary.js';
import { Arrivals, type Datagram, type HostNetwork, type NetworkSockets, type Wiring } from './network.js';

interface Pending {
  resolve: (value: unknown) => void;
  reject: (error: ForkdError) => void;
}

interface Deferred<T> {
  promise: Promise<T>;
  resolve: (value: T) => void;
}

/** A process the helper started and watches. */
export interface HostProcess {
  readonly pid: number;
  /** Together with the pid this names the process for ever: a recycled pid has another start time. */
  readonly startTime: number;
  /** The numbers of the descriptors it was started with, by their names. */
  readonly fds: Record<string, number>;
  readonly exited: Promise<ProcessExit>;
  /** `false` when it was already gone. */
  kill(signal?: 'SIGTERM' | 'SIGKILL' | 'SIGSTOP' | 'SIGCONT'): Promise<boolean>;
}

type ProcessName = Pick<HostProcess, 'pid' | 'startTime'>;

const ERRNO_CODES: Record<string, ErrorCode> = {
  ENOSPC: 'disk_full',
  EDQUOT: 'disk_full',
  EACCES: 'not_permitted',
  EPERM: 'not_permitted',
  ESRCH: 'vmm_exited',
  EJAIL: 'host_unfit',
  EREACH: 'host_unfit',
};

const HINTS: Record<string, string> = {
  EJAIL: 'See `forkd doctor` for what this host lacks. `--no-jail` does without, which is unsafe.',
  EREACH: 'What VMs use must lie in the data directory, and not behind a link there.',
};

/** The files that a helper may use; all others it refuses, whoever asks. */
export interface Reach {
  /** Directories with all that is in them, as far as no link in them leads there. */
  within: string[];
  /** Files of the host to be read or run, and nothing else. */
  read: string[];
}

/** The files that hold the RAM of a snapshot. */
export interface SavedRam {
  memory: string;
  diff?: string;
}

/** The only way forkd does privileged things. One helper process per owner; closing it ends every process tied to it. */
export class HostHelper implements AsyncDisposable {
  #child: ChildProcess;
  #socket: Duplex;
  #ended: Promise<void>;
  #nextId = 1;
  #pending = new Map<number, Pending>();
  #exits = new Map<number, Deferred<ProcessExit>>();
  /** Those that go on without the helper. */
  #untied = new Set<number>();
  #text = '';
  #arrivals: Arrivals;
  /** Why it no longer serves. */
  #failure: ForkdError | undefined;

  /**
   * `owner` is the directory of the program it works for: a later program recognises it by that. One that puts paths together
   * from what others say gives it a `reach`.
   */
  static start(
    owner = '',
    reach: Reach | 'anywhere' = 'anywhere',
    binary = nativeBinary('forkd-host-helper'),
  ): HostHelper {
    return new HostHelper(binary, owner, reach);
  }

  private constructor(binary: string, owner: string, reach: Reach | 'anywhere') {
    this.#child = spawn(binary, [owner], { stdio: ['ignore', 'ignore', 'inherit', 'pipe', 'ipc'], env: {} });
    this.#arrivals = new Arrivals(this.#child);
    this.#socket = this.#child.stdio[3] as Duplex;
    this.#socket.setEncoding('utf8');
    this.#socket.on('data', (chunk: string) => this.#read(chunk));
    this.#socket.on('error', () => {});
    this.#ended = new Promise((resolve) => {
      this.#child.on('error', (cause) => {
        // Of one that runs its end says more.
        if (this.#child.pid !== undefined) return;
        this.#fail(new ForkdError('host_unfit', `cannot start ${binary}`, { cause, hint: 'Run `make build`.' }));
        resolve();
      });
      this.#child.on('exit', () => {
        this.#fail(
          new ForkdError('internal', 'the host helper ended', {
            hint: 'Something outside of forkd ended it; see the kernel log of the host (out of memory?).',
          }),
        );
        resolve();
      });
    });
    const files = reach === 'anywhere' ? { files: reach } : { files: 'only', ...reach };
    // Who asks for something is told why that fails.
    this.#call('reach', files, Done).catch(() => {});
  }

  /** Settles when it is gone, wanted or not. */
  get ended(): Promise<void> {
    return this.#ended;
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  async spawn(spec: SpawnSpec): Promise<HostProcess> {
    const { oomScoreAdj, jail = null, ...rest } = spec;
    const started = await this.#call('spawn', { ...rest, oom_score_adj: oomScoreAdj ?? null, jail }, Spawned);
    return this.#process(started, spec.tied);
  }

  /** Takes hold of a process that an earlier helper started untied; throws `vmm_exited` if it is gone. */
  async adopt(pid: number, startTime: number): Promise<HostProcess> {
    return this.#process(await this.#call('adopt', { pid, start_time: startTime }, Spawned), false);
  }

  /** Makes a running copy of an emulator process that shares all its memory; the original is stopped for a few milliseconds. */
  async forkVmm({ pid, startTime }: ProcessName, spec: ForkSpec): Promise<HostProcess> {
    const request = { pid, start_time: startTime, ...spec, jail: spec.jail ?? null };
    const forked = await this.#call('fork_vmm', request, Spawned);
    return this.#process(forked, spec.tied);
  }

  /**
   * Makes a copy of a VMM that never runs: guest RAM as it is now, for `capture`. `memory` is the image that it was mapped
   * from. The VMM is stopped for a few milliseconds; the copy dies with the helper. With `wakes` it can be made to run.
   */
  async twin({ pid, startTime }: ProcessName, memory: string, wakes?: { jailed: boolean }): Promise<HostProcess> {
    const request = { pid, start_time: startTime, memory, wakes: wakes ?? null };
    return this.#process(await this.#call('twin', request, Spawned), true);
  }

  /** Lets a twin that was made to wake do so: from then on it is what `forkVmm` makes. One that fails is gone. */
  async wake({ pid, startTime }: ProcessName, spec: ForkSpec): Promise<void> {
    await this.#call('wake', { pid, start_time: startTime, ...spec, jail: spec.jail ?? null }, Done);
  }

  /**
   * Writes what of a VM's RAM differs from its image to a sparse file that must not exist yet, or with `full` all of it. The VM
   * must stand still. `vmm_exited` if it ends meanwhile; nothing is left of a capture that fails.
   */
  capture(
    { pid, startTime }: ProcessName,
    memory: string,
    to: string,
    { full = false, background = false } = {},
  ): Promise<Captured> {
    return this.#call('capture', { pid, start_time: startTime, memory, to, full, background }, Captured);
  }

  /** Writes what `capture` wrote over the RAM of a VM that has not run yet; returns how many bytes it was. */
  async inject({ pid, startTime }: ProcessName, memory: string, from: string): Promise<number> {
    return (await this.#call('inject', { pid, start_time: startTime, memory, from }, Injected)).bytes;
  }

  /** In how many of all pages the RAM of two snapshots differs; `diff` is what `capture` wrote over `memory`. */
  compare(a: SavedRam, b: SavedRam): Promise<{ pages: number; changed: number }> {
    return this.#call('compare', { a, b }, Compared);
  }

  /** Until `unguard`: should this program end, however it does, the helper says these lines on the VMM's socket. */
  async guard({ pid, startTime }: ProcessName, socket: string, lines: string[]): Promise<void> {
    await this.#call('guard', { pid, start_time: startTime, socket, lines }, Done);
  }

  async unguard({ pid, startTime }: ProcessName): Promise<void> {
    await this.#call('unguard', { pid, start_time: startTime }, Done);
  }

  /** A network namespace of its own. It goes away with its tap and its sockets: when the VMM has ended and the sockets are closed. */
  async makeNetwork(wiring: Wiring): Promise<HostNetwork> {
    const { guestMac, gatewayMac, guest4, gateway4, guest6, gateway6 } = wiring;
    const addresses = { guest4, gateway4, guest6, gateway6 };
    const macs = { guest_mac: macBytes(guestMac), gateway_mac: macBytes(gatewayMac) };
    const { network } = await this.#call('make_network', { wiring: { ...addresses, ...macs } }, Network);
    return { number: network, sockets: await this.#arrived(network) };
  }

  /** New sockets in the network of a VMM; those that were opened before must be closed. */
  async openNetwork({ pid, startTime }: ProcessName): Promise<NetworkSockets> {
    const { network } = await this.#call('open_network', { pid, start_time: startTime }, Network);
    return this.#arrived(network);
  }

  /** What a guest has sent in vain: frames that do not come from it, and packets that there is no way for, UDP other than DNS among them. */
  networkDrops({ pid, startTime }: ProcessName): Promise<z.infer<typeof Drops>> {
    return this.#call('network_drops', { pid, start_time: startTime }, Drops);
  }

  /** From here on the UDP that the guest of a VMM sends is told, until the listener that this returns is closed. */
  async listenUdp({ pid, startTime }: ProcessName, onDatagram: (datagram: Datagram) => void): Promise<number> {
    const { network: listener } = await this.#call('listen_udp', { pid, start_time: startTime }, Network);
    this.#arrivals.takers.set(listener, ({ socket, from, to, bytes }) => {
      // One that is gone by then needs it no more.
      const claim = (): void => void this.#call('connect_udp', { listener, from, to }, Done).catch(() => {});
      onDatagram({ from, to, bytes, ...(socket && { flow: { socket, claim } }) });
    });
    return listener;
  }

  async closeUdp(listener: number): Promise<void> {
    this.#arrivals.takers.delete(listener);
    await this.#call('close_udp', { listener }, Done);
  }

  /** For one that was never given to a process. */
  async dropNetwork(network: number): Promise<void> {
    await this.#call('drop_network', { network }, Done);
  }

  #arrived(network: number): Promise<NetworkSockets> {
    const ended = this.#ended.then(() => Promise.reject(this.#failure));
    return Promise.race([this.#arrivals.take(network), ended]);
  }

  #process(spawned: z.infer<typeof Spawned>, tied: boolean): HostProcess {
    const identity = { pid: spawned.pid, start_time: spawned.start_time };
    const { promise: exited } = this.#exitOf(spawned.pid);
    if (!tied) this.#untied.add(spawned.pid);
    void exited.then(() => {
      this.#exits.delete(spawned.pid);
      this.#untied.delete(spawned.pid);
    });
    return {
      pid: spawned.pid,
      startTime: spawned.start_time,
      fds: spawned.fds,
      exited,
      kill: async (signal = 'SIGKILL') =>
        (await this.#call('kill', { ...identity, signal: constants.signals[signal] }, Killed)).delivered,
    };
  }

  /** Copies a sparse file to a path that must not exist: reflink where possible, else only its data extents. */
  cloneFile(from: string, to: string): Promise<z.infer<typeof Cloned>> {
    return this.#call('clone_file', { from, to }, Cloned);
  }

  async measureTscKhz(): Promise<number> {
    return (await this.#call('measure_tsc', {}, Tsc)).khz;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#failure ??= new ForkdError('internal', 'the host helper was closed');
    this.#socket.end();
    await this.#ended;
  }

  #call<T>(op: string, request: object, schema: z.ZodType<T>): Promise<T> {
    const id = this.#nextId++;
    return new Promise<T>((resolve, reject) => {
      if (this.#failure) {
        reject(this.#failure);
        return;
      }
      this.#pending.set(id, {
        resolve: (value) => {
          const parsed = schema.safeParse(value);
          if (parsed.success) resolve(parsed.data);
          else reject(new ForkdError('internal', `the host helper answered ${op} with something else`));
        },
        reject,
      });
      this.#socket.write(`${JSON.stringify({ id, op, ...request })}\n`);
    });
  }

  #read(chunk: string): void {
    const lines = (this.#text + chunk).split('\n');
    this.#text = lines.pop() ?? '';
    try {
      for (const line of lines) this.#take(HelperLine.parse(JSON.parse(line)));
    } catch (cause) {
      this.#fail(new ForkdError('internal', 'the host helper broke its protocol', { cause }));
      this.#child.kill('SIGKILL');
    }
  }

  #take(line: z.infer<typeof HelperLine>): void {
    if ('event' in line) {
      this.#exitOf(line.pid).resolve({ code: line.code, signal: line.signal });
      return;
    }
    const pending = this.#pending.get(line.id);
    this.#pending.delete(line.id);
    if ('ok' in line) pending?.resolve(line.ok);
    else pending?.reject(refusal(line.error));
  }

  #fail(error: ForkdError): void {
    this.#failure ??= error;
    for (const pending of this.#pending.values()) pending.reject(this.#failure);
    this.#pending.clear();
    // Tied processes have died with the helper; nobody is left to say how. The others live on.
    for (const [pid, exit] of this.#exits)
      if (!this.#untied.has(pid)) exit.resolve({ code: null, signal: constants.signals.SIGKILL });
  }

  /** The exit line of a short-lived process may be read before the caller of `spawn` runs: whoever comes first makes the entry. */
  #exitOf(pid: number): Deferred<ProcessExit> {
    let exit = this.#exits.get(pid);
    if (!exit) {
      let resolve: (exit: ProcessExit) => void = () => {};
      exit = { promise: new Promise<ProcessExit>((r) => (resolve = r)), resolve };
      this.#exits.set(pid, exit);
    }
    return exit;
  }
}

function macBytes(mac: string): number[] {
  return mac.split(':').map((part) => Number.parseInt(part, 16));
}

function refusal({ message, errno }: { message: string; errno: string | null }): ForkdError {
  const hint = HINTS[errno ?? ''];
  return new ForkdError(ERRNO_CODES[errno ?? ''] ?? 'internal', message, hint === undefined ? {} : { hint });
}

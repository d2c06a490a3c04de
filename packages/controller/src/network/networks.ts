import { relative } from 'node:path';
import type { Engine, Nic, Vm } from '@forkd/engine';
import { closeSockets, type HostHelper, type HostNetwork, type NetworkSockets } from '@forkd/host';
import { asForkdError, ForkdError, type NetworkWire } from '@forkd/protocol';
import { DropCounts } from './drops.js';
import { Spares } from './spares.js';
import { UdpPort } from './udp-port.js';
import { closed, type Uplink } from './uplink.js';
import { DEFAULT_RANGE, type Wiring, wiringOf } from './wiring.js';

export type NetworkMode = 'auto' | 'tap' | 'user' | 'none';

export interface NetworkOptions {
  /**
   * Of new snapshots. `tap`: a network of the host. `user`: one that the VMM plays, and out of which nothing leads. `none`: no
   * device. `auto`: the first of these that can be made here. @default auto
   */
  mode?: NetworkMode;
  /** The addresses of the guests of new snapshots, four of which one is the guest's. */
  range?: string;
  /** @default nothing gets out */
  uplink?: Uplink;
}

/** What a wire connects. */
export interface Ends {
  /** Of the VM. */
  directory: string;
  /** Whose VM it is, or will be. */
  sandbox?: string;
  /** `null`: the VM has no device for it. */
  wiring: Wiring | null;
}

/** The networks of the VMs, one for each; some are always ready. */
export class Networks {
  readonly #mode: NetworkMode;
  readonly #wiring: Wiring;
  readonly #uplink: Uplink;
  readonly #spares: Spares;
  readonly #attached = new Map<string, NetworkSockets>();
  /** What guests have sent in vain, by place. */
  readonly drops: DropCounts;
  #isClosed = false;

  constructor(
    private readonly helper: HostHelper,
    private readonly engine: Pick<Engine, 'userNetwork'>,
    /** Holds the directories of the VMs: what their places are relative to. */
    private readonly own: string,
    { mode = 'auto', range = DEFAULT_RANGE, uplink = closed }: NetworkOptions = {},
  ) {
    this.#mode = mode;
    this.#wiring = wiringOf(range);
    this.#uplink = uplink;
    this.#spares = new Spares(
      () => this.#make(this.#wiring),
      (network) => this.#drop(network),
    );
    this.drops = new DropCounts(helper);
  }

  /** For a new snapshot; `null`: it will have no network device. */
  async wiring(): Promise<Wiring | null> {
    if (this.#mode === 'none') return null;
    if (this.#mode !== 'user')
      try {
        this.#spares.giveBack(await this.#next(this.#wiring));
        return this.#wiring;
      } catch (thrown) {
        if (this.#mode === 'tap') throw thrown;
      }
    const { usable, reason } = await this.engine.userNetwork();
    if (usable) return { ...this.#wiring, backend: 'user' };
    if (this.#mode === 'auto') return null;
    throw new ForkdError('host_unfit', `no network can be made on this host: ${reason}`, { hint: REPAIR });
  }

  /** Starts a VM, on a wire of its own if it has a device for it, for as long as it lives. */
  async connect({ directory, sandbox, wiring }: Ends, start: (nic: { nic?: Nic }) => Promise<Vm>): Promise<Vm> {
    if (wiring === null) return start({});
    if (this.#mode === 'none')
      throw new ForkdError('host_unfit', 'the snapshot has a network device, and this forkd runs without network', {
        hint: 'Start forkd with --network tap, or create the snapshot again.',
      });
    const { guestMac: mac, guest4, gateway4, gateway6 } = wiring;
    if (wiring.backend === 'user') return start({ nic: { mac, wire: { guest4, gateway4, gateway6 } } });
    if (this.#mode === 'user')
      throw new ForkdError('host_unfit', 'the snapshot was made with a tap, and this forkd runs without', {
        hint: 'Start forkd with --network tap, or create the snapshot again.',
      });
    const place = relative(this.own, directory);
    const { number, sockets } = await this.#next(wiring);
    const udp = this.#attach(place, sockets, sandbox);
    try {
      const vm = await start({ nic: { mac, wire: { network: number } } });
      this.#follow(place, sockets, udp, vm);
      return vm;
    } catch (thrown) {
      this.#detach(place, sockets);
      await this.helper.dropNetwork(number).catch(() => {});
      throw thrown;
    }
  }

  /** Answers the guest of a VM that an earlier program has started. Until then, and if it cannot, nobody does. */
  async adopt({ directory, sandbox }: Omit<Ends, 'wiring'>, vm: Vm): Promise<void> {
    if (this.#mode === 'none') throw new ForkdError('host_unfit', 'this forkd runs without network');
    const place = relative(this.own, directory);
    const sockets = await this.helper.openNetwork(vm);
    this.#follow(place, sockets, this.#attach(place, sockets, sandbox), vm);
  }

  /** Where what the VM in a place sends goes. */
  wireOf(place: string, wiring: Wiring | null): NetworkWire {
    if (wiring?.backend !== 'tap') return wiring?.backend ?? 'none';
    return this.#attached.has(place) ? 'tap' : 'lost';
  }

  /** Namespaces last as long as their VMs; what is closed here is our end of them. */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const [place, sockets] of this.#attached) this.#detach(place, sockets);
    await this.#spares.close();
  }

  async #next(wiring: Wiring): Promise<HostNetwork> {
    if (this.#isClosed) throw new ForkdError('cancelled', 'forkd is being stopped');
    // Those of snapshots made with other addresses are not kept ready.
    return sameWiring(wiring, this.#wiring) ? this.#spares.take() : this.#make(wiring);
  }

  async #make(wiring: Wiring): Promise<HostNetwork> {
    try {
      return await this.helper.makeNetwork(wiring);
    } catch (thrown) {
      const cause = asForkdError(thrown);
      throw new ForkdError('host_unfit', `no network can be made on this host: ${cause.message}`, {
        cause,
        hint: REPAIR,
      });
    }
  }

  async #drop({ number, sockets }: HostNetwork): Promise<void> {
    closeSockets(sockets);
    await this.helper.dropNetwork(number);
  }

  #attach(place: string, sockets: NetworkSockets, sandbox?: string): UdpPort {
    const udp = new UdpPort(this.helper);
    this.#attached.set(place, sockets);
    this.#uplink.attach(place, { ...sockets, udp }, sandbox);
    return udp;
  }

  #follow(place: string, sockets: NetworkSockets, udp: UdpPort, vm: Vm): void {
    udp.start(vm);
    this.drops.watch(place, vm);
    void vm.exited.then(() => this.#detach(place, sockets));
  }

  #detach(place: string, sockets: NetworkSockets): void {
    if (this.#attached.get(place) !== sockets) return;
    this.#attached.delete(place);
    this.#uplink.detach(place);
    this.drops.forget(place);
    closeSockets(sockets);
  }
}

const REPAIR = 'See `forkd doctor` for what is missing, or start forkd with --network none.';

function sameWiring(a: Wiring, b: Wiring): boolean {
  return a.guest4 === b.guest4 && a.guest6 === b.guest6 && a.guestMac === b.guestMac;
}

import type { Vm } from '@forkd/engine';
import type { HostHelper } from '@forkd/host';
import type { NetworkDrops } from '@forkd/protocol';
import { inParallel } from '../parallel.js';

/** How many networks are looked into at the same time: each takes a thread of the helper for a moment. */
const WIDTH = 8;

/** What was dropped in the networks of the VMs, which their kernel counts. Those of one that ended are as they were last seen. */
export class DropCounts {
  readonly #known = new Map<string, { vm: Vm; drops: NetworkDrops }>();
  readonly #past = nothing();

  constructor(private readonly helper: HostHelper) {}

  watch(place: string, vm: Vm): void {
    this.#known.set(place, { vm, drops: nothing() });
  }

  forget(place: string): void {
    const known = this.#known.get(place);
    if (known) add(this.#past, known.drops);
    this.#known.delete(place);
  }

  /** `null`: its VM has no network here. */
  async of(place: string): Promise<NetworkDrops | null> {
    const known = this.#known.get(place);
    if (!known) return null;
    try {
      known.drops = await this.helper.networkDrops(known.vm);
    } catch {
      // It is about to end.
    }
    return known.drops;
  }

  /** Of all there are and were. */
  async totals(): Promise<NetworkDrops> {
    const places = [...this.#known.keys()];
    await inParallel(places.length, WIDTH, (index) => this.of(places[index]!));
    const totals = { ...this.#past };
    for (const { drops } of this.#known.values()) add(totals, drops);
    return totals;
  }
}

function nothing(): NetworkDrops {
  return { spoofed: 0, udp: 0, other: 0 };
}

function add(sum: NetworkDrops, more: NetworkDrops): void {
  for (const name of Object.keys(sum) as (keyof NetworkDrops)[]) sum[name] += more[name];
}

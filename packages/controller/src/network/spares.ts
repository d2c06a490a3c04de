import type { HostNetwork } from '@forkd/host';

/**
 * How many are made before somebody asks for them. One takes a millisecond of work but tens of them of waiting for the kernel, in
 * which time a spawn starts a few children.
 */
export const SPARE = 16;
/** After a spawn of many as many are made for the next one. */
const MOST = 128;
/** Until then the work for the next spawn would be done in the time of this one. */
const LULL_MS = 250;

/** Networks that are ready before they are needed. */
export class Spares {
  readonly #ready: Promise<HostNetwork>[] = [];
  /** Taken since the last lull. */
  #taken = 0;
  #isClosed = false;
  #lull: NodeJS.Timeout | undefined;

  constructor(
    private readonly make: () => Promise<HostNetwork>,
    private readonly drop: (network: HostNetwork) => Promise<void>,
  ) {}

  async take(): Promise<HostNetwork> {
    this.#taken++;
    clearTimeout(this.#lull);
    const network = await (this.#ready.shift() ?? this.make());
    while (this.#ready.length < SPARE && !this.#isClosed) void this.#add();
    clearTimeout(this.#lull);
    if (!this.#isClosed) this.#lull = setTimeout(() => void this.#prepare(), LULL_MS).unref();
    return network;
  }

  /** One that was taken and is not needed. */
  giveBack(network: HostNetwork): void {
    this.#ready.unshift(Promise.resolve(network));
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#lull);
    await Promise.all(this.#ready.splice(0).map((spare) => spare.then(this.drop).catch(() => {})));
  }

  /** One after the other, for as long as nobody spawns. */
  async #prepare(): Promise<void> {
    const wanted = Math.min(this.#taken, MOST);
    this.#taken = 0;
    while (this.#ready.length < wanted && this.#taken === 0 && !this.#isClosed) if (!(await this.#add())) return;
  }

  #add(): Promise<boolean> {
    const spare = this.make();
    this.#ready.push(spare);
    return spare.then(
      () => true,
      () => false,
    );
  }
}

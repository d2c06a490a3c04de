import { Resolver } from 'node:dns/promises';
import { type Address, hostName, parseAddress } from '@forkd/protocol';

export interface Found {
  addresses: Address[];
  /** Milliseconds since the epoch. */
  until: number;
  /** There is no such name, or nobody could say. */
  problem?: 'unknownName' | 'failed';
}

/** Finds the addresses of a name. */
export type LookUp = (name: string, family: 4 | 6) => Promise<{ address: string; ttl: number }[]>;

const MOST_NAMES = 4_096;
const MOST_ADDRESSES = 16;
const LONGEST_SECS = 3_600;
/** How long it is believed that there is none. */
const NOTHING_SECS = 5;

/** What names mean to the host, remembered as long as their owners allow. All sandboxes share it, and the proxy asks it too. */
export class Names {
  readonly #known = new Map<string, Found>();
  readonly #asking = new Map<string, Promise<Found>>();

  constructor(private readonly lookUp: LookUp) {}

  async find(name: string, family: 4 | 6): Promise<Found> {
    const key = `${family} ${name}`;
    const known = this.#known.get(key);
    if (known && known.until > Date.now()) return known;
    let asking = this.#asking.get(key);
    if (!asking) {
      asking = this.#ask(name, family).finally(() => this.#asking.delete(key));
      this.#asking.set(key, asking);
    }
    const found = await asking;
    this.#known.delete(key);
    this.#known.set(key, found);
    // The oldest are forgotten first.
    if (this.#known.size > MOST_NAMES) this.#known.delete(this.#known.keys().next().value!);
    return found;
  }

  /** Of both families. */
  async all(name: string): Promise<Address[]> {
    const [four, six] = await Promise.all([this.find(name, 4), this.find(name, 6)]);
    return [...four.addresses, ...six.addresses];
  }

  async #ask(name: string, family: 4 | 6): Promise<Found> {
    const until = (secs: number): number => Date.now() + secs * 1000;
    try {
      // A name that some resolver would read as an address is never asked for.
      if (hostName(name) !== name) return { addresses: [], until: until(NOTHING_SECS), problem: 'unknownName' };
      const records = (await this.lookUp(name, family)).slice(0, MOST_ADDRESSES);
      const addresses = records
        .map(({ address }) => parseAddress(address))
        .filter((address) => address?.family === family) as Address[];
      const ttl = Math.max(1, Math.min(LONGEST_SECS, ...records.map((record) => record.ttl)));
      return { addresses, until: until(addresses.length > 0 ? ttl : NOTHING_SECS) };
    } catch (thrown) {
      const { code } = thrown as NodeJS.ErrnoException;
      const nothing = { addresses: [], until: until(NOTHING_SECS) };
      if (code === 'ENODATA') return nothing;
      return { ...nothing, problem: code === 'ENOTFOUND' ? 'unknownName' : 'failed' };
    }
  }
}

/** Asks these servers, or those of the host. The host's own table of names is not asked: it is about the host's network. */
export function askServers(servers: string[] = []): LookUp {
  const resolver = new Resolver({ timeout: 2_000, tries: 2 });
  if (servers.length > 0) resolver.setServers(servers);
  return (name, family) =>
    family === 4 ? resolver.resolve4(name, { ttl: true }) : resolver.resolve6(name, { ttl: true });
}

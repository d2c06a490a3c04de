import {
  type Address,
  addressText,
  type EgressRules,
  type NetworkCounters,
  type NetworkDecision,
  type NetworkPolicy,
  normalAddress,
} from '@forkd/protocol';
import { Bucket } from './bucket.js';
import { decide, keyOf, type Target, type Verdict } from './decide.js';

/** How many decisions are remembered. */
const REMEMBERED = 100;
/** Addresses that were given out for names; the oldest are forgotten first. */
const MOST_GIVEN = 4_096;
/** Programs keep what a name meant longer than its owner allows. */
const GIVEN_MS = 600_000;

/** What is told of a sandbox's denials: so many at once, then one a second. The rest is only counted. */
const TOLD = { rate: 1, burst: 10 };

export interface Settings {
  policy: NetworkPolicy;
  /** Headers for named hosts: secrets. */
  rules: EgressRules;
  /** Whose it is: there is a limit on all connections of one owner. */
  owner?: string;
}

export interface Environment {
  /** Addresses of the host, as `decide` wants them. */
  own: () => ReadonlySet<string>;
  onDenied: (id: string, decision: NetworkDecision) => void;
}

/** What one sandbox may reach, and what it has tried to. */
export class Outlet {
  readonly counters: Omit<NetworkCounters, 'open'> = {
    allowed: 0,
    denied: 0,
    bytes_sent: 0,
    bytes_received: 0,
    dns_answered: 0,
    dns_denied: 0,
    dns_dropped: 0,
  };
  readonly decisions: NetworkDecision[] = [];
  readonly #given = new Map<string, Map<string, number>>();
  readonly #told = new Bucket(TOLD.rate, TOLD.burst);

  constructor(
    readonly id: string,
    public settings: Settings,
    private readonly environment: Environment,
  ) {}

  get policy(): NetworkPolicy {
    return this.settings.policy;
  }

  decide(target: Target): Verdict {
    return decide(this.policy, target, this.environment.own());
  }

  /** Counts a decision and remembers it for whoever wants to know why something does not work. */
  note(
    kind: NetworkDecision['kind'],
    { allowed, rule }: Verdict,
    about: Pick<NetworkDecision, 'name' | 'address' | 'port'>,
  ): void {
    if (kind === 'dns') this.counters[allowed ? 'dns_answered' : 'dns_denied']++;
    else this.counters[allowed ? 'allowed' : 'denied']++;
    // Names that were answered are followed by connections.
    if (kind === 'dns' && allowed) return;
    const decision = { at_unix_ms: Date.now(), kind, ...about, allowed, rule };
    this.decisions.push(decision);
    if (this.decisions.length > REMEMBERED) this.decisions.shift();
    if (!allowed && this.#told.take()) this.environment.onDenied(this.id, decision);
  }

  /** The sandbox was told that the name has this address. */
  give(address: Address, name: string): void {
    const key = keyOf(address);
    const names = this.#given.get(key) ?? new Map<string, number>();
    names.set(name, Date.now() + GIVEN_MS);
    this.#given.delete(key);
    this.#given.set(key, names);
    if (names.size > 64) names.delete(names.keys().next().value!);
    if (this.#given.size > MOST_GIVEN) this.#given.delete(this.#given.keys().next().value!);
  }

  /** The names it was told to have this address. */
  namesAt(address: string): string[] {
    const normal = normalAddress(address);
    const names = normal ? this.#given.get(keyOf(normal)) : undefined;
    return [...(names ?? [])].flatMap(([name, until]) => (until > Date.now() ? [name] : []));
  }
}

/** In the form in which it is shown and dialled. */
export function plainAddress(text: string): string {
  const address = normalAddress(text);
  return address ? addressText(address) : text;
}

import {
  type Address,
  type Entry,
  isWithin,
  type NetworkPolicy,
  normalAddress,
  parseEntry,
  widthOf,
} from '@forkd/protocol';
import { type Kind, kindOf, opens } from './ranges.js';

export interface Target {
  address: string;
  /** `undefined`: would any port do? */
  port: number | undefined;
  /** What the guest calls it, where that was checked to be an address of that name. */
  name?: string | undefined;
}

export interface Verdict {
  allowed: boolean;
  /** The entry or preset that decided, or why nothing did. */
  rule: string;
}

type RangeEntry = Extract<Entry, { kind: 'range' }>;
type NameEntry = Extract<Entry, { kind: 'name' }>;

export interface Lists {
  allow: { ranges: RangeEntry[]; names: NameEntry[] };
  deny: { ranges: RangeEntry[]; names: NameEntry[] };
}

const OPEN: Record<NetworkPolicy['preset'], Kind[]> = { none: [], internet: ['public'], all: ['public', 'private'] };

const parsed = new WeakMap<NetworkPolicy, Lists>();

/** The lists of a policy, parsed once. */
export function listsOf(policy: NetworkPolicy): Lists {
  let lists = parsed.get(policy);
  if (!lists) {
    lists = { allow: split(policy.allow), deny: split(policy.deny) };
    parsed.set(policy, lists);
  }
  return lists;
}

/**
 * Whether a connection may be made. An address that is denied is denied by whatever name. A name opens public addresses only:
 * whoever answers for a name must not choose addresses of the host's own network. `own`: addresses of the host itself, at
 * which its services listen.
 */
export function decide(policy: NetworkPolicy, target: Target, own: ReadonlySet<string> = new Set()): Verdict {
  const { address: text, port, name } = target;
  const address = normalAddress(text);
  if (!address) return no('not an address');
  const { allow, deny } = listsOf(policy);
  // Where any port would do, only an entry about all of them denies.
  const denied = deny.ranges.find(
    (entry) => isWithin(address, entry.range) && (entry.port === undefined || entry.port === port),
  );
  if (denied) return no(denied.text);
  const byAddress = decideAddress(policy, allow.ranges, address, port, own);
  if (name === undefined) return byAddress;
  const byName = decideName(policy, name, port);
  if (byName === undefined) return byAddress;
  if (!byName.allowed || byAddress.allowed) return byName;
  return isPublic(address, own) ? byName : no(`${byName.rule} has an address that is ${kindOf(address)}`);
}

/** What the entries about names say; `undefined`: nothing. The most exact entry counts, and of two that are as exact the one that denies. */
export function decideName(policy: NetworkPolicy, name: string, port: number | undefined): Verdict | undefined {
  const { allow, deny } = listsOf(policy);
  const allowed = mostExact(allow.names.filter((entry) => names(entry, name) && isPort(entry, port)));
  const denied = mostExact(
    deny.names.filter((entry) => names(entry, name) && (entry.port === undefined || entry.port === port)),
  );
  if (denied && (!allowed || exactness(denied) >= exactness(allowed))) return no(denied.text);
  return allowed && { allowed: true, rule: allowed.text };
}

/** Whether a name may be asked for: some connection to it might be allowed. */
export function mayResolve(policy: NetworkPolicy, name: string): Verdict {
  const byName = decideName(policy, name, undefined);
  if (byName) return byName;
  return policy.preset === 'none' ? no('no entry names it') : { allowed: true, rule: policy.preset };
}

function decideAddress(
  { preset }: NetworkPolicy,
  ranges: RangeEntry[],
  address: Address,
  port: number | undefined,
  own: ReadonlySet<string>,
): Verdict {
  const isOwn = own.has(keyOf(address));
  const allowed = ranges.find(
    (entry) =>
      isWithin(address, entry.range) &&
      isPort(entry, port) &&
      opens(entry.range, address) &&
      (!isOwn || entry.range.bits === widthOf(address)),
  );
  if (allowed) return { allowed: true, rule: allowed.text };
  if (isOwn) return no('an address of the host');
  const kind = kindOf(address);
  if (OPEN[preset].includes(kind)) return { allowed: true, rule: preset };
  return no(kind === 'public' ? 'no entry names it' : `a ${kind} address`);
}

/** How the addresses of the host are kept for `decide`. */
export function keyOf({ family, value }: Address): string {
  return `${family} ${value}`;
}

function isPublic(address: Address, own: ReadonlySet<string>): boolean {
  return kindOf(address) === 'public' && !own.has(keyOf(address));
}

function isPort(entry: Entry, port: number | undefined): boolean {
  return entry.port === undefined || port === undefined || entry.port === port;
}

function names({ name, isWildcard }: NameEntry, asked: string): boolean {
  return isWildcard ? asked.endsWith(`.${name}`) : asked === name;
}

/** A name is more exact than any `*.`, a longer `*.` than a shorter one. */
export function exactness({ name, isWildcard }: NameEntry): number {
  return isWildcard ? name.length : 1000;
}

function mostExact(entries: NameEntry[]): NameEntry | undefined {
  return entries.reduce<NameEntry | undefined>(
    (best, entry) => (best && exactness(best) >= exactness(entry) ? best : entry),
    undefined,
  );
}

function split(texts: string[]): Lists['allow'] {
  const entries = texts.map(parseEntry).filter((entry): entry is Entry => typeof entry !== 'string');
  return {
    ranges: entries.filter((entry) => entry.kind === 'range'),
    names: entries.filter((entry) => entry.kind === 'name'),
  };
}

function no(rule: string): Verdict {
  return { allowed: false, rule };
}

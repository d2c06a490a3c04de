import { type Entry, isInside, type NetworkPolicy, widthOf } from '@forkd/protocol';
import { keyOf, listsOf } from './decide.js';
import { openedBy, reaches } from './ranges.js';

type RangeEntry = Extract<Entry, { kind: 'range' }>;
type NameEntry = Extract<Entry, { kind: 'name' }>;

const PRESETS = ['none', 'internet', 'all'];

/**
 * The first thing `policy` might open that `limit` does not; `undefined`: it opens nothing more. Where that is hard to say it
 * counts as more: who knows better says so. `own` as for `decide`.
 */
export function widening(
  policy: NetworkPolicy,
  limit: NetworkPolicy,
  own: ReadonlySet<string> = new Set(),
): string | undefined {
  const [ours, theirs] = [listsOf(policy), listsOf(limit)];
  if (PRESETS.indexOf(policy.preset) > PRESETS.indexOf(limit.preset)) return `preset ${policy.preset}`;
  const forgotten = [
    ...theirs.deny.ranges.filter((entry) => !ours.deny.ranges.some((own) => isWholly(entry, own))),
    // A wider one would not do: an entry that is allowed here may be more exact than that.
    ...theirs.deny.names.filter(({ text }) => !ours.deny.names.some((own) => own.text === text)),
  ];
  if (forgotten[0]) return `deny ${forgotten[0].text} is missing`;
  return (
    ours.allow.ranges.find((entry) => !coversRange(limit, entry, own))?.text ??
    ours.allow.names.find((entry) => !coversName(limit, entry))?.text
  );
}

function coversRange(limit: NetworkPolicy, entry: RangeEntry, own: ReadonlySet<string>): boolean {
  const { allow } = listsOf(limit);
  const opened = openedBy(entry.range);
  const { base, bits } = entry.range;
  // Only an entry of nothing else opens an address of the host.
  if (bits === widthOf(base) && own.has(keyOf(base))) return allow.ranges.some(({ text }) => text === entry.text);
  const isOpenedBy = ({ range }: RangeEntry): boolean => opened.every((special) => isInside(range, special));
  if (allow.ranges.some((other) => isWholly(entry, other) && isOpenedBy(other))) return true;
  if (limit.preset === 'none') return false;
  return !reaches(entry.range, limit.preset === 'all' ? ['local', 'metadata'] : ['private', 'local', 'metadata']);
}

function coversName(limit: NetworkPolicy, entry: NameEntry): boolean {
  const { allow, deny } = listsOf(limit);
  // With the same denials and the same entry, the same one is the most exact.
  if (allow.names.some(({ text }) => text === entry.text)) return true;
  if (deny.names.some((denied) => isUnder(entry, denied) || isUnder(denied, entry))) return false;
  return limit.preset !== 'none' || allow.names.some((other) => isUnder(entry, other) && isPortOf(entry, other));
}

/** All addresses and ports of one are among those of the other. */
function isWholly(one: RangeEntry, other: RangeEntry): boolean {
  return isInside(one.range, other.range) && isPortOf(one, other);
}

function isPortOf(one: Entry, other: Entry): boolean {
  return other.port === undefined || other.port === one.port;
}

/** Every name of one is a name of the other. */
function isUnder(one: NameEntry, other: NameEntry): boolean {
  if (!other.isWildcard) return !one.isWildcard && one.name === other.name;
  return one.name.endsWith(`.${other.name}`) || (one.isWildcard && one.name === other.name);
}

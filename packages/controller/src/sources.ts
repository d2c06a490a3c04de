import { unlessAborted } from '@forkd/host';
import type { Parts } from './parts.js';
import type { SnapshotMeta } from './snapshot.js';
import { type Source, savedSource } from './source.js';
import { Zygote } from './zygote.js';

/** Preparing a zygote costs about as much as restoring two children without one. */
const WORTH_A_ZYGOTE = 3;

/** Each is a VM that stands still with all it has written. Those that were not used for longest make room. */
const MOST_ZYGOTES = 8;
/** Those of branches cost nothing to make, and most branches have their children soon or never. */
const MOST_OF_BRANCHES = 4;
const OF_BRANCH_MS = 60_000;

interface Kept {
  ready: Promise<Zygote | undefined>;
  stop: AbortController;
  /** Spawns that fork from it at this moment. */
  users: number;
  /** That of a branch goes when it was not used for this long. */
  timer?: NodeJS.Timeout;
}

/** Chooses where children come from, and keeps the zygotes. */
export class Sources {
  /** The one that was used last comes last. */
  readonly #zygotes = new Map<string, Kept>();

  constructor(private readonly parts: Parts) {}

  async for(snapshot: SnapshotMeta, children: number, signal: AbortSignal): Promise<Source> {
    const worth = children >= WORTH_A_ZYGOTE || this.#zygotes.has(snapshot.tag);
    // A zygote only makes children faster: where none can be had, they show by themselves what is wrong.
    const zygote = worth ? this.#still(snapshot).catch(() => undefined) : undefined;
    return (await unlessAborted(signal, Promise.resolve(zygote))) ?? savedSource(this.parts, snapshot);
  }

  /** As `for`; while the work goes on, the source stays. */
  async using<T>(
    snapshot: SnapshotMeta,
    children: number,
    signal: AbortSignal,
    work: (source: Source) => Promise<T>,
  ): Promise<T> {
    const source = await this.for(snapshot, children, signal);
    const kept = this.#zygotes.get(snapshot.tag);
    if (!kept) return work(source);
    kept.users++;
    this.#zygotes.delete(snapshot.tag);
    this.#zygotes.set(snapshot.tag, kept);
    try {
      return await work(source);
    } finally {
      kept.users--;
      kept.timer?.refresh();
      this.#makeRoom();
    }
  }

  /** Children of the branch come from this zygote, for as long as it is there. */
  keep(tag: string, zygote: Zygote): void {
    const timer = setTimeout(() => kept.users === 0 && void this.drop(tag), OF_BRANCH_MS).unref();
    const kept: Kept = { ready: Promise.resolve(zygote), stop: new AbortController(), users: 0, timer };
    this.#add(tag, kept);
  }

  #add(tag: string, kept: Kept): void {
    this.#zygotes.set(tag, kept);
    this.#makeRoom();
    // One that failed or died is made again by the next spawn.
    const forget = (): boolean => this.#zygotes.get(tag) === kept && this.#zygotes.delete(tag);
    kept.ready.then((made) => made?.exited.then(forget), forget);
  }

  #makeRoom(): void {
    const all = [...this.#zygotes];
    const ofBranches = all.filter(([, { timer }]) => timer !== undefined);
    for (const [among, most] of [
      [ofBranches, MOST_OF_BRANCHES],
      [all, MOST_ZYGOTES],
    ] as const) {
      const idle = among.filter(([, { users }]) => users === 0);
      for (const [tag] of idle.slice(0, Math.max(0, among.length - most))) void this.drop(tag);
    }
  }

  /** Shared by all who ask at the same time; ends early only when it is dropped. */
  prepare(snapshot: SnapshotMeta): Promise<Zygote | undefined> {
    const { tag } = snapshot;
    const known = this.#zygotes.get(tag);
    if (known) return known.ready;
    const stop = new AbortController();
    const ready = Zygote.prepare(this.parts, snapshot, stop.signal);
    this.#add(tag, { ready, stop, users: 0 });
    return ready;
  }

  async #still(snapshot: SnapshotMeta): Promise<Zygote | undefined> {
    const zygote = await this.prepare(snapshot);
    await zygote?.still();
    return zygote;
  }

  async drop(tag: string): Promise<void> {
    const zygote = this.#zygotes.get(tag);
    this.#zygotes.delete(tag);
    clearTimeout(zygote?.timer);
    zygote?.stop.abort();
    await (await zygote?.ready.catch(() => undefined))?.[Symbol.asyncDispose]();
  }

  async close(): Promise<void> {
    await Promise.all([...this.#zygotes.keys()].map((tag) => this.drop(tag)));
  }
}

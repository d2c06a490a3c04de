import { unlessAborted } from './cancel.js';
import type { Parts } from './parts.js';
import type { SnapshotMeta } from './snapshot.js';
import { type Source, savedSource } from './source.js';
import { Zygote } from './zygote.js';

/** Preparing a zygote costs about as much as restoring two children without one. */
const WORTH_A_ZYGOTE = 3;

/** Each is a VM that stands still with all it has written. Those that were not used for longest make room. */
const MOST_ZYGOTES = 8;

interface Kept {
  ready: Promise<Zygote | undefined>;
  stop: AbortController;
  /** Spawns that fork from it at this moment. */
  users: number;
}

/** Chooses where children come from, and keeps the zygotes. */
export class Sources {
  /** The one that was used last comes last. */
  readonly #zygotes = new Map<string, Kept>();

  constructor(private readonly parts: Parts) {}

  async for(snapshot: SnapshotMeta, children: number, signal: AbortSignal): Promise<Source> {
    const worth = children >= WORTH_A_ZYGOTE || this.#zygotes.has(snapshot.tag);
    // A zygote only makes children faster: where none can be had, they show by themselves what is wrong.
    const zygote = worth ? this.prepare(snapshot).catch(() => undefined) : undefined;
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
      this.#makeRoom();
    }
  }

  #makeRoom(): void {
    const idle = [...this.#zygotes].filter(([, { users }]) => users === 0).map(([tag]) => tag);
    for (const tag of idle.slice(0, Math.max(0, this.#zygotes.size - MOST_ZYGOTES))) void this.drop(tag);
  }

  /** Shared by all who ask at the same time; ends early only when it is dropped. */
  prepare(snapshot: SnapshotMeta): Promise<Zygote | undefined> {
    const { tag } = snapshot;
    const known = this.#zygotes.get(tag);
    if (known) return known.ready;
    const stop = new AbortController();
    const zygote = { ready: Zygote.prepare(this.parts, snapshot, stop.signal), stop, users: 0 };
    this.#zygotes.set(tag, zygote);
    this.#makeRoom();
    // One that failed or died is made again by the next spawn.
    const forget = (): boolean => this.#zygotes.get(tag) === zygote && this.#zygotes.delete(tag);
    zygote.ready.then((made) => made?.exited.then(forget), forget);
    return zygote.ready;
  }

  async drop(tag: string): Promise<void> {
    const zygote = this.#zygotes.get(tag);
    this.#zygotes.delete(tag);
    zygote?.stop.abort();
    await (await zygote?.ready.catch(() => undefined))?.[Symbol.asyncDispose]();
  }

  async close(): Promise<void> {
    await Promise.all([...this.#zygotes.keys()].map((tag) => this.drop(tag)));
  }
}

import type { Parts } from './parts.js';
import type { SnapshotMeta } from './snapshot.js';
import { type Source, savedSource } from './source.js';
import { Zygote } from './zygote.js';

/** Preparing a zygote costs about as much as restoring two children without one. */
const WORTH_A_ZYGOTE = 3;

/** Chooses where children come from, and keeps the zygotes. */
export class Sources {
  readonly #zygotes = new Map<string, Promise<Zygote | undefined>>();

  constructor(private readonly parts: Parts) {}

  async for(snapshot: SnapshotMeta, children: number): Promise<Source> {
    const worth = children >= WORTH_A_ZYGOTE || this.#zygotes.has(snapshot.tag);
    return (worth ? await this.prepare(snapshot) : undefined) ?? savedSource(this.parts, snapshot);
  }

  prepare(snapshot: SnapshotMeta): Promise<Zygote | undefined> {
    const { tag } = snapshot;
    let zygote = this.#zygotes.get(tag);
    if (!zygote) {
      zygote = Zygote.prepare(this.parts, snapshot);
      this.#zygotes.set(tag, zygote);
      // One that failed or died is made again by the next spawn.
      const forget = (): boolean => this.#zygotes.get(tag) === zygote && this.#zygotes.delete(tag);
      zygote.then((made) => made?.exited.then(forget), forget);
    }
    return zygote;
  }

  async drop(tag: string): Promise<void> {
    const zygote = this.#zygotes.get(tag);
    this.#zygotes.delete(tag);
    await (await zygote?.catch(() => undefined))?.[Symbol.asyncDispose]();
  }

  async close(): Promise<void> {
    await Promise.all([...this.#zygotes.keys()].map((tag) => this.drop(tag)));
  }
}

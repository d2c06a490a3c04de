import type { EventType, ForkdEvent } from '@forkd/protocol';

/** How many are kept for those who come back after a broken connection. */
const REMEMBERED = 2_000;

/** What an event says beside its type. */
export type News = Omit<ForkdEvent, 'seq' | 'type' | 'at_unix_ms'>;

/** What happens to snapshots and sandboxes, for whoever listens. */
export class Events {
  readonly #remembered: ForkdEvent[] = [];
  readonly #listeners = new Set<(event: ForkdEvent) => void>();
  /** Goes on where a program before this one may have stopped: a second never has a million events. */
  #seq = Math.floor(Date.now() / 1000) * 1_000_000;

  tell(type: EventType, news: News): void {
    const event = { seq: ++this.#seq, type, at_unix_ms: Date.now(), ...news };
    this.#remembered.push(event);
    if (this.#remembered.length > REMEMBERED) this.#remembered.shift();
    for (const listener of this.#listeners) listener(event);
  }

  /** Those still remembered after the given one. */
  since(seq: number): ForkdEvent[] {
    return this.#remembered.filter((event) => event.seq > seq);
  }

  listen(listener: (event: ForkdEvent) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

import type { Store } from './store.js';

/** Changes that come closer together than this share one write to the disk. */
const WINDOW_MS = 20;

interface Entry {
  change: () => void;
  resolve: () => void;
  reject: (reason: unknown) => void;
}

/** Makes the changes of many callers durable with few writes: a hundred children are ready within two seconds. */
export class Journal {
  #waiting: Entry[] = [];
  #lastWrite = 0;

  constructor(private readonly store: Store) {}

  /** Settles when the change is durable. */
  write(change: () => void): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ change, resolve, reject });
      if (this.#waiting.length > 1) return;
      const wait = this.#lastWrite + WINDOW_MS - performance.now();
      if (wait > 0) setTimeout(() => this.#flush(), wait);
      else setImmediate(() => this.#flush());
    });
  }

  #flush(): void {
    const entries = this.#waiting;
    this.#waiting = [];
    const settle: (() => void)[] = [];
    try {
      this.store.together(() => {
        for (const { change, resolve, reject } of entries)
          try {
            change();
            settle.push(resolve);
          } catch (reason) {
            settle.push(() => reject(reason));
          }
      });
      for (const done of settle) done();
    } catch (reason) {
      for (const { reject } of entries) reject(reason);
    }
    this.#lastWrite = performance.now();
  }
}

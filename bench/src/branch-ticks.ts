import { setTimeout as sleep } from 'node:timers/promises';
import type { RestClient } from './rest-client.js';

/** One short write per millisecond, for as long as anybody listens. */
const TICKER = `
import os, time
while True:
    os.write(1, b'.')
    time.sleep(0.001)
`;
/** Ticks until those that start the interpreter are over, and for as long the gap after the last event is looked at. */
const SETTLED = 100;
const MARGIN_MS = 30;

/**
 * How long a guest stood still, seen from outside: while it does its own clock stands still too. What lies between the guest
 * and here (agent, daemon, this program) is part of every gap, so one without a branch is measured as well.
 */
export class Ticks implements Disposable {
  readonly #arrivals: number[] = [];
  readonly #stream: { end(): void };

  static async start(rest: RestClient, id: string): Promise<Ticks> {
    const ticks = new Ticks(rest, id);
    while (ticks.#arrivals.length < SETTLED) await sleep(5);
    return ticks;
  }

  private constructor(rest: RestClient, id: string) {
    const program = { args: ['python3', '-c', TICKER], timeout_secs: 600 };
    this.#stream = rest.stream(`/v1/sandboxes/${id}/exec`, program, () => this.#arrivals.push(performance.now()));
  }

  /** The longest time without a tick while `work` was done. */
  async during<T>(work: () => Promise<T>): Promise<{ value: T; gapMs: number }> {
    await sleep(MARGIN_MS);
    const from = performance.now();
    const value = await work();
    const until = performance.now();
    await sleep(MARGIN_MS);
    // One that began or ended in it counts whole.
    const first = this.#arrivals.findLastIndex((at) => at < from);
    const last = this.#arrivals.findIndex((at) => at > until);
    const seen = this.#arrivals.slice(Math.max(0, first), last < 0 ? undefined : last + 1);
    // A guest that has not ticked again yet has been silent until now.
    if (last < 0) seen.push(performance.now());
    return { value, gapMs: Math.max(...seen.slice(1).map((at, index) => at - seen[index]!)) };
  }

  [Symbol.dispose](): void {
    this.#stream.end();
  }
}

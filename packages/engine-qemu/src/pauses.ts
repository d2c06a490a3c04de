import { type Guarded, type GuardOptions, Phases } from '@forkd/engine';
import { type HostHelper, type HostProcess, unlessAborted } from '@forkd/host';
import { ForkdError } from '@forkd/protocol';
import type { Control } from './control.js';

/** What the helper says to a VM that a program leaves behind in a guarded pause. */
const GO_ON = ['qmp_capabilities', 'cont'].map((execute) => JSON.stringify({ execute }));
const TIMEOUT_MS = 60_000;
const GO_ON_ATTEMPTS = 3;

/** Everything that stops a VM or lets it go on; those who want to wait for each other. */
export class Pauses {
  #helper: HostHelper;
  #process: HostProcess;
  #control: Control;
  #turns: Promise<unknown> = Promise.resolve();

  constructor(helper: HostHelper, process: HostProcess, control: Control) {
    this.#helper = helper;
    this.#process = process;
    this.#control = control;
  }

  pause(): Promise<unknown> {
    return this.#inTurn(() => this.#control.execute('stop'));
  }

  resume(): Promise<unknown> {
    return this.#inTurn(() => this.#control.execute('cont'));
  }

  guarded<T>(
    work: () => Promise<T>,
    { signal, timeoutMs = TIMEOUT_MS, phases = new Phases() }: GuardOptions,
  ): Promise<Guarded<T>> {
    return this.#inTurn(async () => {
      signal?.throwIfAborted();
      const limit = new AbortController();
      const late = new ForkdError('timeout', `what the VM stood still for took longer than ${timeoutMs} ms`);
      const timer = setTimeout(() => limit.abort(late), timeoutMs);
      try {
        return await this.#while(work, AbortSignal.any(signal ? [signal, limit.signal] : [limit.signal]), phases);
      } finally {
        clearTimeout(timer);
      }
    });
  }

  async #while<T>(work: () => Promise<T>, signal: AbortSignal, phases: Phases): Promise<Guarded<T>> {
    const { running } = await this.#control.status();
    if (!running) return { value: await unlessAborted(signal, work()), pauseMs: 0 };
    await this.#helper.guard(this.#process, this.#control.path, GO_ON);
    try {
      return await this.#paused(work, signal, phases);
    } finally {
      // Without a helper there is no guard either.
      await this.#helper.unguard(this.#process).catch(() => {});
    }
  }

  async #paused<T>(work: () => Promise<T>, signal: AbortSignal, phases: Phases): Promise<Guarded<T>> {
    const since = performance.now();
    let value: T;
    try {
      const working = phases.time('stop', this.#control.execute('stop')).then(() => {
        signal.throwIfAborted();
        return work();
      });
      value = await unlessAborted(signal, working);
    } finally {
      await phases.time('resume', this.#goOn());
    }
    return { value, pauseMs: performance.now() - since };
  }

  async #goOn(): Promise<void> {
    for (let attempt = 1; ; attempt++)
      try {
        await this.#control.execute('cont');
        return;
      } catch (failure) {
        if (attempt === GO_ON_ATTEMPTS) throw failure;
      }
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#turns.then(work);
    this.#turns = result.catch(() => {});
    return result;
  }
}

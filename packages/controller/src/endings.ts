import { about } from './about.js';
import { now } from './clock.js';
import type { SandboxExit } from './limits/out-of-memory.js';
import type { LiveSandboxes, Order } from './live-sandboxes.js';
import type { Parts } from './parts.js';
import type { Sandbox } from './sandbox.js';
import type { Journal } from './store/journal.js';

/** How long one that ended by itself is remembered, with the reason. */
const REMEMBER_SECS = 3_600;

const SHUT_DOWN = 'the guest shut down';

/** How sandboxes end: because somebody says so, because their time is up, or by themselves. */
export class Endings {
  constructor(
    private readonly parts: Parts,
    private readonly live: LiveSandboxes,
    private readonly journal: Journal,
  ) {}

  async end(id: string, order: Order): Promise<void> {
    const { store } = this.parts;
    const live = this.live.find(id);
    if (!live) {
      // One that ended by itself is only remembered: killing it forgets it.
      if (this.live.record(id).state !== 'exited') this.live.get(id);
      store.removeSandbox(id);
      return;
    }
    if (this.live.orderOf(id) === undefined) {
      store.moveSandbox(id, 'stopping');
      this.live.order(id, order);
      await live.sandbox.stop();
    }
    await live.settled;
  }

  /** Writes down that one has ended. */
  async ended(sandbox: Sandbox, exit: SandboxExit): Promise<void> {
    const { store, events } = this.parts;
    // Another VM may take its place, or it another id, until this is written.
    const isCurrent = (): boolean => this.live.current(sandbox.id) === sandbox;
    const order = isCurrent() ? this.live.orderOf(sandbox.id) : undefined;
    const why = order ?? reason(exit);
    await this.journal.write(() => {
      if (!isCurrent()) return;
      if (order === 'killed') store.removeSandbox(sandbox.id);
      else store.moveSandbox(sandbox.id, 'exited', { ended_at: now(), exit_reason: why });
    });
    if (!isCurrent()) return;
    this.live.forget(sandbox.id);
    const type = order === 'killed' ? 'deleted' : order || why === SHUT_DOWN ? 'exited' : 'crashed';
    events.tell(type, { ...about(sandbox), message: why });
  }

  /** Ends those whose time is up, and forgets those that ended long ago. */
  sweep(): void {
    const { store } = this.parts;
    const expired = store.expired(now());
    for (const id of expired) if (this.live.find(id)) void this.end(id, 'expired').catch(() => {});
    store.forgetSandboxes(now() - REMEMBER_SECS);
  }
}

function reason({ code, signal, lastWords, why }: SandboxExit): string {
  if (why !== undefined) return why;
  if (code === 0) return SHUT_DOWN;
  const how = signal !== null ? `by signal ${signal}` : code !== null ? `with code ${code}` : 'unexpectedly';
  return `the VM ended ${how}\n${lastWords.slice(-1000)}`.trimEnd();
}

import { type BranchOptions, branchSandbox } from './branch.js';
import { now } from './clock.js';
import type { LiveSandboxes } from './live-sandboxes.js';
import type { Parts } from './parts.js';
import { keepRules } from './policy.js';
import type { SnapshotInMaking, Snapshots } from './snapshots.js';
import type { Sources } from './sources.js';

export interface Branching extends Omit<BranchOptions, 'signal' | 'onResumed' | 'report' | 'tag'> {
  /** @default branch-ID-TIME-NUMBER, as forkd names them */
  tag?: string | undefined;
  owner: string;
  rememberFailure?: boolean;
  /** Seconds until it may be removed. */
  ttl?: number | undefined;
  signal?: AbortSignal;
}

/** Snapshots that are made of running sandboxes. */
export class Branches {
  #begun = 0;
  /** How many are being made. */
  making = 0;

  constructor(
    private readonly parts: Parts,
    private readonly snapshots: Snapshots,
    private readonly live: LiveSandboxes,
    private readonly sources: Sources,
  ) {}

  begin(id: string, options: Branching): SnapshotInMaking & { resumed: Promise<number> } {
    const sandbox = this.live.free(id);
    const number = (this.#begun++).toString(16).padStart(4, '0');
    const tag = options.tag ?? `branch-${id}-${now()}-${number}`;
    let onResumed = (_pauseMs: number): void => {};
    const running = new Promise<number>((resolve) => (onResumed = resolve));
    const { record, done } = this.snapshots.begin({
      ...options,
      tag,
      recipe: sandbox.snapshot.recipe,
      write: async (signal, report) => {
        const { meta, zygote } = await this.snapshots.using(sandbox.snapshot.tag, () =>
          branchSandbox(this.parts, sandbox, { ...options, tag, onResumed, report, signal }),
        );
        if (zygote) this.sources.keep(tag, zygote);
        this.parts.store.countBranch(id, tag);
        keepRules(this.parts.store, id, tag);
        return meta;
      },
    });
    this.making++;
    done.catch(() => {}).finally(() => this.making--);
    // A branch that fails before the sandbox runs again fails whoever waits for that.
    const resumed = Promise.race([running, done.then(() => running)]);
    resumed.catch(() => {});
    return { record, done, resumed };
  }
}

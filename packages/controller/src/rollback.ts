import { ForkdError, newSandboxId } from '@forkd/protocol';
import { limitsOf } from './limits/settings.js';
import type { Parts } from './parts.js';
import { type Birth, Sandbox } from './sandbox.js';
import type { Sandboxes } from './sandboxes.js';
import { checkUsable } from './snapshot.js';
import { ancestors, type Snapshots, type SnapshotView } from './snapshots.js';
import type { Sources } from './sources.js';
import type { SandboxRecord } from './store/records.js';

/** Longer than a new VM may take until it has acknowledged its identity. */
const ROLLBACK_MS = 90_000;

/** The old VM stands still until the new one is ready, and goes on as if nothing had happened if that never is. */
export class Rollback {
  constructor(
    private readonly parts: Parts,
    private readonly sandboxes: Sandboxes,
    private readonly snapshots: Snapshots,
    private readonly sources: Sources,
  ) {}

  run(id: string, tag: string, given?: AbortSignal): Promise<SandboxRecord> {
    const { parts, sandboxes } = this;
    const old = sandboxes.get(id);
    return sandboxes.alone([id], 'being rolled back', given, (signal) =>
      this.snapshots.using(tag, async (snapshot) => {
        checkLine(sandboxes.record(id), tag, await this.snapshots.list());
        await checkUsable(parts.data.snapshots, snapshot, parts.engine);
        const record = sandboxes.record(id);
        const { owner, env } = record;
        const rank = { index: 0, count: 1, limits: limitsOf(record), guestBranch: old.guestBranch, cgroups: [] };
        const place = newSandboxId();
        await this.sources.using(snapshot, 1, signal, (source) =>
          this.#replace(old, { id, place, owner, snapshot, source, env, ...rank, keeper: sandboxes, signal }),
        );
        parts.events.tell('rolled_back', { sandbox_id: id, snapshot_tag: tag, owner });
        return sandboxes.record(id);
      }),
    );
  }

  async #replace(old: Sandbox, birth: Birth): Promise<void> {
    const { parts, sandboxes } = this;
    const { id, place, signal, snapshot } = birth;
    let replaced = false;
    const replace = async (): Promise<void> => {
      const next = await Sandbox.start(parts, birth);
      const { pid, startTime } = next.vm;
      try {
        signal.throwIfAborted();
        // From here to `own` nothing else runs: the record and the living never name different VMs.
        if (sandboxes.current(id) !== old) sandboxes.get(id);
        parts.store.replaceVm(id, { place, pid, start_time: startTime, snapshot_tag: snapshot.tag });
      } catch (thrown) {
        await next.stop();
        throw thrown;
      }
      sandboxes.own(next);
      replaced = true;
      old.guest.close(new ForkdError('state_conflict', `sandbox ${id} was rolled back to ${snapshot.tag}`));
      await old.stop();
    };
    let replacing: Promise<void> | undefined;
    // Guarded, so that it runs on also when this program is killed meanwhile.
    const guarding = old.vm.guarded(() => (replacing = replace()), { signal, timeoutMs: ROLLBACK_MS });
    try {
      await guarding;
    } catch (thrown) {
      // It cannot go on once its place is taken.
      await replacing?.catch(() => {});
      if (!replaced) throw thrown;
    }
  }
}

/** What it came from, and what was taken of it. */
function checkLine({ id, promoted_from, snapshot_tag }: SandboxRecord, tag: string, views: SnapshotView[]): void {
  const isTaken = ({ meta }: SnapshotView): boolean => [id, promoted_from].includes(meta?.branch?.sandbox ?? '');
  const own = [...ancestors(snapshot_tag, views), snapshot_tag, ...views.filter(isTaken).map((view) => view.tag)];
  if (own.includes(tag)) return;
  throw new ForkdError('invalid_request', `snapshot ${tag} is not of the line of sandbox ${id}`, {
    hint: `It can go back to ${own.slice(-10).join(', ')}.`,
  });
}

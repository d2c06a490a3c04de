import { statSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { asForkdError } from '@forkd/protocol';
import { about } from './about.js';
import { checkForks } from './budget.js';
import { guarded } from './cancel.js';
import { limitsOf } from './limits/settings.js';
import { newRecord } from './new-record.js';
import { inParallel } from './parallel.js';
import type { Parts } from './parts.js';
import { policyOf, rulesOf } from './policy.js';
import { type Keeper, Sandbox } from './sandbox.js';
import { checkUsable, type SnapshotMeta, snapshotFiles } from './snapshot.js';
import { LOCAL_OWNER } from './snapshots.js';
import type { Source } from './source.js';
import type { Sources } from './sources.js';
import type { SpawnOptions, SpawnResult } from './spawn-options.js';
import type { Journal } from './store/journal.js';
import type { SandboxRecord } from './store/records.js';

type Options = SpawnOptions & { signal: AbortSignal };

/** Looks after what is born. */
interface Parent extends Keeper {
  own(sandbox: Sandbox): void;
}

/** How sandboxes begin: recorded before they exist, and handed out when the record says that they run. */
export class Births {
  constructor(
    private readonly parts: Parts,
    private readonly sources: Sources,
    private readonly journal: Journal,
    private readonly parent: Parent,
  ) {}

  async spawn(snapshot: SnapshotMeta, options: Options): Promise<SpawnResult[]> {
    const { engine, data, store } = this.parts;
    await checkUsable(data.snapshots, snapshot, engine);
    return this.sources.using(snapshot, options.n, options.signal, (source) => {
      const { size } = statSync(snapshotFiles(`${data.snapshots}/${snapshot.tag}`).upper);
      const policy = policyOf(this.parts, snapshot, options.network, options.owner ?? LOCAL_OWNER);
      const around = { defaults: this.parts.defaults, diskMib: Math.ceil(size / 2 ** 20), policy };
      const records = Array.from({ length: options.n }, (_, index) => newRecord(snapshot, options, index, around));
      options.signal.throwIfAborted();
      if (!options.continues) checkForks(store, snapshot.budget, options.n);
      this.parts.admission.check(records);
      store.addSandboxes(records, rulesOf(store, snapshot, records, options.network));
      return this.#start(records, snapshot, source, options);
    });
  }

  async #start(
    records: SandboxRecord[],
    snapshot: SnapshotMeta,
    source: Source,
    options: Options,
  ): Promise<SpawnResult[]> {
    const { n: count, width = availableParallelism() + 1, env = {}, cgroups = [], signal } = options;
    const births = await inParallel(count, width, async (index) => {
      const { id, place, owner, guest_branch } = records[index]!;
      const rank = { index, count, limits: limitsOf(records[index]!), guestBranch: guest_branch === 1, cgroups };
      const birth = { id, place, owner, snapshot, source, env, ...rank, keeper: this.parent, signal };
      const started = await settled(guarded(signal, () => Sandbox.start(this.parts, birth)));
      // Not waited for here: while the record of one is being written the next one starts.
      return { result: this.#handOut(id, started, () => started.ok && options.onReady?.(started.sandbox, index)) };
    });
    return Promise.all(births.map(({ result }) => result));
  }

  async #handOut(id: string, started: SpawnResult, ready: () => void): Promise<SpawnResult> {
    const result = started.ok ? await settled(this.#born(started.sandbox)) : started;
    if (result.ok) ready();
    else await this.journal.write(() => this.parts.store.removeSandbox(id));
    return result;
  }

  async #born(sandbox: Sandbox): Promise<Sandbox> {
    const { store, events } = this.parts;
    const { pid, startTime } = sandbox.vm;
    try {
      const running = { pid, start_time: startTime };
      await this.journal.write(() => void store.moveSandbox(sandbox.id, 'running', running));
    } catch (thrown) {
      await sandbox.stop();
      throw thrown;
    }
    this.parent.own(sandbox);
    events.tell('spawned', about(sandbox));
    return sandbox;
  }
}

async function settled(starting: Promise<Sandbox>): Promise<SpawnResult> {
  try {
    return { ok: true, sandbox: await starting };
  } catch (thrown) {
    return { ok: false, error: asForkdError(thrown) };
  }
}

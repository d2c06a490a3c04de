import { existsSync, readdirSync } from 'node:fs';
import { rename, rm } from 'node:fs/promises';
import { unlessAborted } from '@forkd/host';
import { asForkdError, ForkdError, parseTag, Tag } from '@forkd/protocol';
import { guarded } from './cancel.js';
import { now } from './clock.js';
import { compactSnapshot } from './compact.js';
import { type CreateOptions, createSnapshot } from './create-snapshot.js';
import type { Parts } from './parts.js';
import { keepRules, ofSnapshot } from './policy.js';
import type { Report } from './progress.js';
import { bytesOf, checkFiles, readSnapshot, type SnapshotMeta } from './snapshot.js';
import type { Sources } from './sources.js';
import type { SnapshotRecord } from './store/records.js';

/** Owner of what a program without tokens makes, and of what is found on disk. */
export const LOCAL_OWNER = 'local';

/** What is known of a snapshot; `meta` once it is whole, `problem` if that cannot be used. */
export interface SnapshotView extends SnapshotRecord {
  meta?: SnapshotMeta;
  problem?: string;
}

/** A snapshot to be made, by whatever means. */
export interface NewSnapshot {
  tag: string;
  owner?: string;
  recipe: string | null;
  /** Whether one that could not be made is remembered with the reason, for those who did not wait. */
  rememberFailure?: boolean;
  /** Seconds until it may be removed. */
  ttl?: number | undefined;
  onProgress?: Report | undefined;
  signal?: AbortSignal | undefined;
  /** Writes it and puts it in its place. */
  write(signal: AbortSignal, report: Report): Promise<SnapshotMeta>;
}

export interface SnapshotChanges {
  /** Seconds from now; `null`: it is kept. */
  ttl?: number | null;
  pinned?: boolean;
  /** Names of owners; `*`: all. */
  sharedWith?: string[];
}

/** Its tag is taken; `done` settles when it is ready or has failed. */
export interface SnapshotInMaking {
  record: SnapshotRecord;
  done: Promise<SnapshotMeta>;
}

/** The snapshots of a data directory: what is on disk, with what the store says of it. */
export class Snapshots {
  readonly #leases = new Map<string, number>();
  readonly #writers = new Set<Promise<unknown>>();
  readonly #closing = new AbortController();

  constructor(
    private readonly parts: Parts,
    private readonly sources: Sources,
    /** Each holds the memory of a whole VM, and writes it to the disk. */
    private readonly mostWriters: number,
  ) {}

  /** Brings the records in line with the disk: a snapshot that was being written is whole or it has failed. */
  reconcile(): void {
    const { store } = this.parts;
    for (const { tag, status } of store.snapshots()) {
      const onDisk = this.#onDisk(tag);
      if (status === 'writing' && onDisk) store.moveSnapshot(tag, 'ready');
      else if (status === 'writing')
        store.moveSnapshot(tag, 'failed', { warning: 'forkd ended while the snapshot was being written' });
      else if (status === 'ready' && !onDisk) store.removeSnapshot(tag);
    }
  }

  async list(): Promise<SnapshotView[]> {
    for (const tag of readdirSync(this.parts.data.snapshots)) await this.#record(tag);
    return Promise.all(this.parts.store.snapshots().map((record) => this.#view(record)));
  }

  async get(tag: string): Promise<SnapshotView> {
    const record = await this.#record(tag);
    if (!record) throw new ForkdError('snapshot_not_found', `there is no snapshot ${JSON.stringify(tag)}`);
    return this.#view(record);
  }

  /** A snapshot children can be made of, or why not. */
  async ready(tag: string): Promise<SnapshotMeta> {
    const { status, warning } = await this.get(tag);
    if (status === 'ready') return readSnapshot(this.parts.data.snapshots, tag);
    const why = warning === null ? '' : `: ${warning}`;
    throw new ForkdError('state_conflict', `snapshot ${tag} is ${status}${why}`, {
      hint: status === 'writing' ? 'Wait until it is ready.' : 'Remove it and create it again.',
      details: { state: status },
    });
  }

  /** As `ready`; until the work is done the snapshot cannot be removed. */
  async using<T>(tag: string, work: (snapshot: SnapshotMeta) => Promise<T>): Promise<T> {
    const snapshot = await this.ready(tag);
    this.#leases.set(tag, (this.#leases.get(tag) ?? 0) + 1);
    try {
      return await work(snapshot);
    } finally {
      const left = (this.#leases.get(tag) ?? 0) - 1;
      if (left > 0) this.#leases.set(tag, left);
      else this.#leases.delete(tag);
    }
  }

  /** Takes the tag at once; `done` settles when the snapshot is ready or has failed. */
  begin(wanted: NewSnapshot): SnapshotInMaking {
    const { store } = this.parts;
    const tag = parseTag(wanted.tag);
    if (this.#onDisk(tag)) throw new ForkdError('tag_exists', `snapshot ${tag} exists already`);
    if (this.#writers.size >= this.mostWriters)
      throw new ForkdError('overloaded', `${this.mostWriters} snapshots are being written already`);
    const owner = wanted.owner ?? LOCAL_OWNER;
    this.parts.admission.checkSnapshot(owner);
    const record: SnapshotRecord = {
      tag,
      owner,
      status: 'writing',
      created_at: now(),
      recipe: wanted.recipe,
      warning: null,
      expires_at: wanted.ttl === undefined ? null : now() + wanted.ttl,
    };
    store.addSnapshot(record);
    const done = this.#write(record, wanted);
    this.#writers.add(done);
    const settled = (): boolean => this.#writers.delete(done);
    done.then(settled, settled);
    return { record, done };
  }

  async change(tag: string, { ttl, pinned, sharedWith }: SnapshotChanges): Promise<SnapshotView> {
    await this.get(tag);
    this.parts.store.changeSnapshot(tag, {
      ...(ttl !== undefined && { expires_at: ttl === null ? null : now() + ttl }),
      ...(pinned !== undefined && { pinned: pinned ? 1 : 0 }),
      ...(sharedWith !== undefined && { shared_with: sharedWith }),
    });
    return this.get(tag);
  }

  /** Whether something is being done with it. */
  isLeased(tag: string): boolean {
    return this.#leases.has(tag);
  }

  async remove(
    tag: string,
    usersOf: (tag: string) => number,
    { cascade = false, force = false }: { cascade?: boolean; force?: boolean },
  ): Promise<void> {
    await this.get(tag);
    const dependents = force ? [] : descendants(tag, await this.list());
    if (dependents.length > 0 && !cascade)
      throw new ForkdError('state_conflict', `snapshot ${tag} is the parent of ${dependents.join(', ')}`, {
        hint: 'Remove those too with cascade, or leave them with force: they go on working.',
      });
    // All or none: what is in use far down keeps the whole branch.
    const doomed = [...dependents.reverse(), tag];
    for (const one of doomed) await this.#mayRemove(one, usersOf(one));
    for (const one of doomed) await this.#remove(one);
  }

  /** Written like a branch in mode full, from a VM that never runs. */
  compact(from: string, to: string, owner: string, signal: AbortSignal): Promise<SnapshotMeta> {
    if (from === to) throw new ForkdError('invalid_request', 'a snapshot cannot be compacted into itself');
    const write = async (aborted: AbortSignal): Promise<SnapshotMeta> => {
      const meta = await this.using(from, (snapshot) => compactSnapshot(this.parts, snapshot, to, aborted));
      keepRules(this.parts.store, ofSnapshot(from), to);
      return meta;
    };
    return this.begin({ tag: to, owner, recipe: null, signal, write }).done;
  }

  async #mayRemove(tag: string, users: number): Promise<void> {
    const { status } = await this.get(tag);
    if (status === 'writing')
      throw new ForkdError('state_conflict', `snapshot ${tag} is writing`, { details: { state: 'writing' } });
    const inUse = users + (this.#leases.get(tag) ?? 0);
    if (inUse > 0)
      throw new ForkdError('state_conflict', `snapshot ${tag} is in use by ${inUse} running sandboxes`, {
        hint: 'Kill them first.',
      });
  }

  async #remove(tag: string): Promise<void> {
    const { store, events, data } = this.parts;
    const { owner } = await this.get(tag);
    await this.sources.drop(tag);
    if (this.#onDisk(tag)) await this.#discard(tag);
    store.removeSnapshot(tag);
    events.tell('deleted', { owner, snapshot_tag: tag });
    await rm(this.#trash(tag), { recursive: true, force: true });
    await rm(`${data.snapshots}/${tag}`, { recursive: true, force: true });
  }

  async close(): Promise<void> {
    this.#closing.abort(new ForkdError('cancelled', 'forkd is being stopped'));
    await Promise.allSettled(this.#writers);
  }

  async #write({ tag, owner }: SnapshotRecord, wanted: NewSnapshot): Promise<SnapshotMeta> {
    const { store, events } = this.parts;
    const signal = AbortSignal.any([this.#closing.signal, ...(wanted.signal ? [wanted.signal] : [])]);
    const report: Report = (progress) => {
      const { step, detail } = progress;
      events.tell('progress', { owner, snapshot_tag: tag, message: detail ? `${step}: ${detail}` : step });
      wanted.onProgress?.(progress);
    };
    try {
      const meta = await guarded(signal, () => wanted.write(signal, report));
      // A branch whose line has a budget was weighed when that was checked.
      const bytes = store.snapshot(tag)?.bytes ?? (await bytesOf(this.parts.data.snapshots, meta));
      store.moveSnapshot(tag, 'ready', { bytes });
      events.tell(meta.branch ? 'branched' : 'created', {
        owner,
        snapshot_tag: tag,
        ...(meta.branch && { sandbox_id: meta.branch.sandbox }),
      });
      return meta;
    } catch (thrown) {
      const { message } = asForkdError(thrown);
      if (wanted.rememberFailure) store.moveSnapshot(tag, 'failed', { warning: message.slice(0, 4000) });
      else store.removeSnapshot(tag);
      events.tell('deleted', { owner, snapshot_tag: tag, message });
      throw thrown;
    }
  }

  /** A new snapshot from a recipe, and the zygote of its children: without that it is not kept. */
  create(options: CreateOptions & Pick<NewSnapshot, 'owner' | 'rememberFailure'>): SnapshotInMaking {
    return this.begin({
      ...options,
      recipe: options.recipeName,
      write: async (signal, onProgress) => {
        const snapshot = await createSnapshot(this.parts, { ...options, onProgress, signal });
        onProgress({ step: 'zygote', detail: 'rehearsing what every child does first' });
        try {
          await unlessAborted(signal, this.sources.prepare(snapshot));
        } catch (thrown) {
          await this.sources.drop(snapshot.tag);
          await this.#discard(snapshot.tag);
          await rm(this.#trash(snapshot.tag), { recursive: true, force: true });
          throw thrown;
        }
        return snapshot;
      },
    });
  }

  /** One step on disk, so that it is there whole or not at all; what is left is swept at the next start. */
  #discard(tag: string): Promise<void> {
    return rename(`${this.parts.data.snapshots}/${tag}`, this.#trash(tag));
  }

  #trash(tag: string): string {
    return `${this.parts.data.own}/removed-${tag}`;
  }

  #onDisk(tag: string): boolean {
    return existsSync(`${this.parts.data.snapshots}/${tag}/snapshot.json`);
  }

  /** Also of one that another program has put there, or taken away. */
  async #record(tag: string): Promise<SnapshotRecord | undefined> {
    if (!Tag.safeParse(tag).success) return undefined;
    const { store, data } = this.parts;
    const record = store.snapshot(tag);
    if (record && (record.status !== 'ready' || this.#onDisk(tag))) return record;
    if (record) store.removeSnapshot(tag);
    if (!this.#onDisk(tag)) return undefined;
    const meta = await readSnapshot(data.snapshots, tag).catch(() => undefined);
    if (!meta) return undefined;
    const { created_at_unix: created_at, recipe, budget, branch } = meta;
    const spent = { line: budget?.line ?? null, bytes: branch?.physical_bytes ?? null };
    const found = { tag, owner: LOCAL_OWNER, status: 'ready', created_at, recipe, warning: null, ...spent } as const;
    store.addSnapshot(found);
    return found;
  }

  async #view(record: SnapshotRecord): Promise<SnapshotView> {
    if (record.status !== 'ready') return record;
    try {
      const meta = await readSnapshot(this.parts.data.snapshots, record.tag);
      await checkFiles(this.parts.data.snapshots, meta);
      return { ...record, meta };
    } catch (thrown) {
      return { ...record, problem: asForkdError(thrown).message };
    }
  }
}

/** Nearest first. */
export function descendants(tag: string, views: SnapshotView[]): string[] {
  const children = views.filter(({ meta }) => meta?.parent === tag).map((view) => view.tag);
  return [...children, ...children.flatMap((child) => descendants(child, views))];
}

/** The first of the line first. */
export function ancestors(tag: string, views: SnapshotView[]): string[] {
  const parent = views.find((view) => view.tag === tag)?.meta?.parent;
  if (!parent || !views.some((view) => view.tag === parent)) return [];
  return [...ancestors(parent, views), parent];
}

import { readFileSync } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import type { Engine } from '@forkd/engine';
import { ForkdError, NetworkPolicy, SandboxId, Tag } from '@forkd/protocol';
import { z } from 'zod';
import { Wiring } from './network/wiring.js';
import { Budget } from './store/records.js';

/** Raised when a reader of an older version could misread what is written now. */
export const SNAPSHOT_FORMAT = 1;

/** What `snapshot.json` says: enough to refuse a host on which the saved machine would not run. */
export const SnapshotMeta = z.object({
  format: z.literal(SNAPSHOT_FORMAT),
  tag: Tag,
  created_at_unix: z.number().int(),
  recipe: z.string(),
  parent: Tag.nullable(),
  /** The snapshot this is a copy of that stands alone. */
  compacted: Tag.nullable().default(null),
  engine: z.object({ kind: z.string(), version: z.string() }),
  machine: z.object({
    vcpus: z.number().int(),
    memoryMib: z.number().int(),
    accel: z.enum(['kvm', 'tcg']),
  }),
  /** Of its network device; `null`: it has none. */
  network: Wiring.nullable().default(null),
  /** Of the host that saved it; under KVM the guest sees this CPU. */
  cpu: z.object({ model: z.string(), flags: z.string() }),
  /** Of one that was taken of a running sandbox. */
  branch: z
    .object({
      sandbox: SandboxId,
      mode: z.enum(['live', 'diff', 'full']),
      /** Whether its memory is `memory.img` with `memory.diff` over it, or `memory.img` alone. */
      diff: z.boolean(),
      pause_ms: z.number(),
      /** What the pause was made of; the disk is copied while state and memory are taken. */
      phases_ms: z.record(z.string(), z.number()).default({}),
      capture_ms: z.number(),
      dirty_bytes: z.number().int(),
      physical_bytes: z.number().int(),
    })
    .nullable()
    .default(null),
  /** What its children inherit. */
  budget: Budget.nullable().default(null),
  guest_branch: z.boolean().default(false),
  /** Where the connections of the sandbox it was taken of could go; `null`: its children may be given any policy. */
  policy: NetworkPolicy.nullable().default(null),
  agent_protocol: z.number().int(),
  /** With which the host makes its guests listen. */
  hail: z.string().default(''),
  language: z.enum(['python', 'node']).nullable(),
  /** A line in that language, harmless to evaluate again. */
  rehearsal: z.string().nullable(),
  env: z.record(z.string(), z.string()),
  hashes: z.object({
    kernel: z.string(),
    initramfs: z.string(),
    base: z.string(),
    memory: z.string(),
    state: z.string(),
  }),
});
export type SnapshotMeta = z.infer<typeof SnapshotMeta>;

/** The files of one snapshot. */
export function snapshotFiles(directory: string) {
  return {
    memory: `${directory}/memory.img`,
    /** The pages in which a branch differs from `memory.img`, which it shares with the snapshot it goes back to. */
    diff: `${directory}/memory.diff`,
    state: `${directory}/device.state`,
    base: `${directory}/base.img`,
    upper: `${directory}/upper.img`,
    meta: `${directory}/snapshot.json`,
  };
}

export async function readSnapshot(snapshots: string, tag: string): Promise<SnapshotMeta> {
  const name = Tag.safeParse(tag);
  const text =
    name.success && (await readFile(snapshotFiles(`${snapshots}/${name.data}`).meta, 'utf8').catch(() => null));
  if (!text) throw new ForkdError('snapshot_not_found', `there is no snapshot ${JSON.stringify(tag)}`);
  const meta = SnapshotMeta.safeParse(JSON.parse(text));
  if (meta.success) return meta.data;
  throw new ForkdError('host_unfit', `snapshot ${tag} was written by another version of forkd`, {
    hint: 'Create it again from its recipe.',
  });
}

/** QEMU would make a memory file that is missing, and its guest would never answer: so files are looked at first. */
export async function checkFiles(snapshots: string, meta: SnapshotMeta): Promise<void> {
  const { memory, diff, state, base, upper } = snapshotFiles(`${snapshots}/${meta.tag}`);
  for (const file of [memory, ...(meta.branch?.diff ? [diff] : []), state, base, upper]) {
    const size = (await stat(file).catch(() => undefined))?.size ?? 0;
    const whole = file === memory || file === diff ? size === meta.machine.memoryMib * (1 << 20) : size > 0;
    if (!whole)
      throw new ForkdError('host_unfit', `snapshot ${meta.tag} is damaged: ${file} is missing or cut short`, {
        hint: 'Remove the snapshot and create it again from its recipe.',
      });
  }
}

/** The files that only this snapshot holds; a memory image is shared by all generations. */
export async function bytesOf(snapshots: string, { tag, branch }: SnapshotMeta): Promise<number> {
  const { memory, diff, state, upper } = snapshotFiles(`${snapshots}/${tag}`);
  const files = [branch?.diff ? diff : memory, state, upper];
  const sizes = await Promise.all(
    files.map((file) =>
      stat(file).then(
        ({ blocks }) => blocks * 512,
        () => 0,
      ),
    ),
  );
  return sizes.reduce((sum, size) => sum + size, 0);
}

/** A saved machine continues only on what it was saved on: anything else is refused by naming the field that differs. */
async function checkHost(meta: SnapshotMeta, engine: Engine): Promise<void> {
  const report = await engine.probe();
  const here = { kind: engine.kind, version: report.version, ...hostCpu() };
  const differs = (field: string, saved: string, now: string | null): ForkdError =>
    new ForkdError('host_unfit', `snapshot ${meta.tag} needs ${field} ${saved}, this host has ${now}`, {
      hint: 'Create the snapshot again on this host.',
    });
  if (meta.engine.kind !== here.kind) throw differs('engine', meta.engine.kind, here.kind);
  if (meta.engine.version !== here.version) throw differs('engine version', meta.engine.version, here.version);
  if (!report.accels[meta.machine.accel].usable) throw differs('accelerator', meta.machine.accel, 'not this one');
  if (meta.machine.accel === 'kvm' && meta.cpu.model !== here.model)
    throw differs('CPU model', meta.cpu.model, here.model);
  if (meta.machine.accel === 'kvm' && meta.cpu.flags !== here.flags)
    throw differs('CPU flags', meta.cpu.flags, here.flags);
}

/** Whether children can be made of it, here and now. */
export async function checkUsable(snapshots: string, meta: SnapshotMeta, engine: Engine): Promise<void> {
  await checkHost(meta, engine);
  await checkFiles(snapshots, meta);
}

export function hostCpu(): { model: string; flags: string } {
  const info = readFileSync('/proc/cpuinfo', 'utf8');
  const field = (name: string): string => new RegExp(`^${name}\\s*: (.*)$`, 'm').exec(info)?.[1] ?? '';
  return { model: field('model name'), flags: field('flags') };
}

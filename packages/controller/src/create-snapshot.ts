import { randomBytes } from 'node:crypto';
import { link, mkdir, rm } from 'node:fs/promises';
import type { Accel, Machine, Vm } from '@forkd/engine';
import { connectGuest, type GuestClient } from '@forkd/guest';
import { type HostHelper, nativeBinary, Scope, unlessAborted } from '@forkd/host';
import { buildImages, type Images, type KernelSource, type Recipe } from '@forkd/images';
import { ForkdError, parseTag } from '@forkd/protocol';
import { whileAlive } from './alive.js';
import { now } from './clock.js';
import { checkSpace, makeDraft, publish } from './draft.js';
import { sha256 } from './durable.js';
import { findLanguage } from './find-language.js';
import { kernelParameter, type Wiring } from './network/wiring.js';
import type { Parts } from './parts.js';
import type { Report } from './progress.js';
import { untilQuiet } from './quiet.js';
import { hostCpu, SNAPSHOT_FORMAT, type SnapshotMeta, snapshotFiles } from './snapshot.js';
import { trustAuthority } from './trust-authority.js';
import { untilReady, warmUp } from './warm-up.js';

/** A kernel that has not started the agent by then is stuck, also on an emulated CPU beside a busy host. */
const BOOT_TIMEOUT_MS = 120_000;

/** Beside guest RAM: the writable disk as far as the warm-up fills it, and the device state. */
const SPARE_MIB = 64;

export interface CreateOptions {
  tag: string;
  recipe: Recipe;
  recipeName: string;
  accel?: Accel | 'auto';
  /** A kernel of the user's own in place of Debian's. */
  kernel?: KernelSource;
  /** An image file in place of the recipe's root disk; a language is looked for in it. */
  rootfs?: string;
  onProgress?: Report;
  signal?: AbortSignal | undefined;
}

/** Boots a VM from a recipe, warms it, and saves it under a tag. Nothing is left of an attempt that fails. */
export async function createSnapshot(
  parts: Parts,
  options: CreateOptions & { signal: AbortSignal },
): Promise<SnapshotMeta> {
  const { data, engine } = parts;
  const { onProgress: report = () => {}, signal } = options;
  const tag = parseTag(options.tag);
  // First, because what an engine lacks shows at once, and images may take minutes.
  report({ step: 'engine', detail: 'what it can do on this host' });
  const accel = await unlessAborted(signal, engine.accel(options.accel ?? 'auto'));
  report({ step: 'images' });
  const images = await buildImages(options.recipe, {
    store: data.images,
    agent: nativeBinary('forkd-agent'),
    kernel: options.kernel,
    rootfs: options.rootfs,
    onProgress: report,
    signal,
  });
  const machine = { vcpus: options.recipe.vcpus, memoryMib: options.recipe.memory_mib, accel };

  await checkSpace(data.own, machine.memoryMib + SPARE_MIB);
  await using scope = new Scope();
  const draft = await makeDraft(data, tag, scope);
  await lay(images, draft, parts.helper);
  const network = await parts.networks.wiring();
  const wired = network ? (network.backend === 'tap' ? 'network' : 'closed network') : 'no network';
  report({ step: 'boot', detail: `${machine.memoryMib} MiB, ${machine.vcpus} vCPU, ${accel}, ${wired}` });
  const hail = randomBytes(16).toString('hex');
  const warming = { ...options, network, hail, report, signal };
  const { protocol, recipe } = await warmParent(parts, machine, images, draft, warming);

  report({ step: 'save' });
  const version = (await engine.probe()).version ?? '';
  const meta: SnapshotMeta = {
    format: SNAPSHOT_FORMAT,
    tag,
    created_at_unix: now(),
    recipe: options.recipeName,
    parent: null,
    budget: null,
    guest_branch: false,
    policy: null,
    engine: { kind: engine.kind, version },
    machine,
    network,
    cpu: hostCpu(),
    agent_protocol: protocol,
    hail,
    language: recipe.warmup.kernel ?? null,
    rehearsal: recipe.ready.eval ?? null,
    env: recipe.env,
    compacted: null,
    branch: null,
    hashes: { ...images.hashes, ...(await hashed(draft, signal)) },
  };
  signal.throwIfAborted();
  await publish(data, draft, meta);
  return meta;
}

/** The disks of the new snapshot: the base is shared with the image store, the upper is its own. */
async function lay(images: Images, draft: string, helper: HostHelper): Promise<void> {
  const files = snapshotFiles(draft);
  await link(images.base, files.base).catch((error: NodeJS.ErrnoException) => {
    // The image store may be on a file system of its own.
    if (error.code !== 'EXDEV') throw error;
    return helper.cloneFile(images.base, files.base);
  });
  await helper.cloneFile(images.upper, files.upper);
}

const CMDLINE = ['forkd.base=/dev/vda', 'forkd.upper=/dev/vdb'];

interface Warming {
  recipe: Recipe;
  rootfs?: string;
  network: Wiring | null;
  hail: string;
  report: Report;
  signal: AbortSignal;
}

/** Runs the parent from boot to saved; returns the protocol its agent speaks, and what it was warmed by. */
async function warmParent(
  { engine, data, networks, authority }: Parts,
  machine: Machine,
  images: Images,
  draft: string,
  { recipe: given, rootfs, network, hail, report, signal }: Warming,
): Promise<{ protocol: number; recipe: Recipe }> {
  const files = snapshotFiles(draft);
  const directory = `${data.own}/parent-${process.hrtime.bigint().toString(36)}`;
  await using scope = new Scope();
  await mkdir(directory);
  scope.add(() => rm(directory, { recursive: true, force: true }));
  signal.throwIfAborted();
  const vm = scope.own(
    await networks.connect({ directory, wiring: network }, (nic) =>
      engine.boot({
        machine,
        kernel: images.kernel,
        initramfs: images.initramfs,
        cmdline: [...CMDLINE, `forkd.hail=${hail}`, ...(network ? [kernelParameter(network)] : [])],
        disks: [
          { path: files.base, readOnly: true },
          { path: files.upper, readOnly: false },
        ],
        directory,
        tied: true,
        memory: files.memory,
        ...nic,
      }),
    ),
  );
  const guest = connectGuest(await vm.channel());
  scope.add(() => guest.close());
  const protocol = await whileAlive(vm, 'while it booted', firstAnswer(guest, vm, signal));
  const found = rootfs === undefined ? given : findLanguage(guest, given, report, signal);
  const known = await whileAlive(vm, 'during its warm-up', Promise.resolve(found));
  const recipe = await whileAlive(vm, 'during its warm-up', trustAuthority(guest, known, authority, signal));
  await whileAlive(vm, 'during its warm-up', warmUp(guest, recipe, report, signal));
  await whileAlive(vm, 'before it was ready', untilReady(guest, recipe, report, signal));
  await whileAlive(vm, 'while it settled', settle(guest, vm, signal));
  await whileAlive(vm, 'while it was saved', vm.save(files.state));
  return { protocol, recipe };
}

/** Brings the guest to rest and stops it. */
async function settle(guest: GuestClient, vm: Vm, signal: AbortSignal): Promise<void> {
  await guest.settle({ signal });
  // The channel is closed before the save: a child then wakes up waiting for its first connection.
  guest.close();
  await untilQuiet(vm.pid, signal);
  await vm.pause();
}

async function firstAnswer(guest: GuestClient, vm: Vm, signal: AbortSignal): Promise<number> {
  try {
    return (await guest.health({ timeoutMs: BOOT_TIMEOUT_MS, signal })).protocol;
  } catch (thrown) {
    if (!(thrown instanceof ForkdError) || thrown.code !== 'timeout') throw thrown;
    throw new ForkdError('timeout', `the guest did not answer within ${BOOT_TIMEOUT_MS / 1000} s of boot`, {
      hint: `The console says: ${vm.console().trim().slice(-1000) || '(nothing)'}`,
    });
  }
}

async function hashed(draft: string, signal: AbortSignal): Promise<{ memory: string; state: string }> {
  const files = snapshotFiles(draft);
  const [memory, state] = await Promise.all([sha256(files.memory, signal), sha256(files.state, signal)]);
  return { memory, state };
}

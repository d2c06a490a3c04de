import { asForkdError, ForkdError } from '@forkd/protocol';
import type { Forkd, SnapshotInfo } from '@forkd/sdk';
import { command, option, toggle } from '../command.js';
import type { Context } from '../context.js';
import { usage } from '../usage.js';
import { count, sandboxId, tag, text } from '../values.js';
import { RECIPE } from './flags.js';

export const snapshot = command({
  name: 'snapshot',
  group: 'snapshots',
  summary: 'Make a snapshot: from a recipe, a kernel and a root disk, or a sandbox',
  flags: {
    tag: option('TAG', tag, 'Name of the new snapshot', { complete: 'tags' }),
    recipe: RECIPE,
    kernel: option('FILE', text, 'Kernel on the host of the daemon', { env: 'FORKD_KERNEL', complete: 'files' }),
    rootfs: option('FILE', text, 'Root disk on the host of the daemon', { env: 'FORKD_ROOTFS', complete: 'files' }),
    rw: toggle('The root disk is writable'),
    tap: option('NAME', text, 'Network device on the host of the daemon', { env: 'FORKD_TAP' }),
    'boot-wait-secs': option('SECS', count(0, 60), 'How long to let a VM from a root disk boot'),
    'mem-size-mib': option('MIB', count(64, 65_536), 'Memory of the VM'),
    vcpus: option('COUNT', count(1, 8), 'CPUs of the VM'),
    'from-sandbox': option('ID', sandboxId, 'Save this sandbox as it is', { complete: 'sandboxes' }),
    diff: toggle('With --from-sandbox: only what differs from its parent'),
    live: toggle('With --from-sandbox: without stopping it'),
    'no-wait': toggle('Return at once; the snapshot is "writing" until it is "ready"'),
  },
  examples: ['forkd snapshot --tag numpy --recipe python-numpy', 'forkd snapshot --from-sandbox ID --tag half-way'],
  async run(context, { flags }) {
    const { output, signal } = context;
    const wait = !flags['no-wait'];
    if (flags['from-sandbox'] !== undefined) {
      if (flags.diff && flags.live) throw usage('--diff and --live exclude each other');
      const mode = flags.live ? 'live' : flags.diff ? 'diff' : 'full';
      const sandbox = await (await context.daemon()).sandboxes.get(flags['from-sandbox'], { signal });
      const made = await sandbox.branch({ mode, wait, signal, ...(flags.tag !== undefined && { tag: flags.tag }) });
      await output.result(made, () => describe(made));
      return;
    }
    if (flags.tag === undefined) throw usage('--tag TAG is missing');
    const { recipe, kernel, rootfs } = flags;
    if (recipe === undefined && (kernel === undefined || rootfs === undefined))
      throw usage(
        'say what to make it from',
        'Give --recipe NAME (see `forkd recipes`), or --kernel FILE and --rootfs FILE.',
      );
    const source = recipe === undefined ? { kernel: kernel!, rootfs: rootfs!, rw: flags.rw } : { recipe };
    const made = await makeSnapshot(context, await context.daemon(), {
      tag: flags.tag,
      wait,
      ...source,
      ...(flags['boot-wait-secs'] !== undefined && { boot_wait_secs: flags['boot-wait-secs'] }),
      ...(flags['mem-size-mib'] !== undefined && { memory_mib: flags['mem-size-mib'] }),
      ...(flags.vcpus !== undefined && { vcpus: flags.vcpus }),
      ...(flags.tap !== undefined && { tap: flags.tap }),
    });
    await output.result(made, () => output.good(describe(made)));
  },
});

type Request = Parameters<Forkd['snapshots']['create']>[0];

/** Makes a snapshot and shows how it comes along. */
export async function makeSnapshot(
  { output, signal }: Context,
  daemon: Forkd,
  request: Request,
): Promise<SnapshotInfo> {
  output.progress(`making snapshot ${request.tag}${request.recipe === undefined ? '' : ` from ${request.recipe}`}`);
  let last = '';
  const onProgress = ({ message }: { message?: string | undefined }): void => {
    if (message === undefined || message === last) return;
    last = message;
    output.progress(`${request.tag}: ${message}`);
  };
  const made = await daemon.snapshots.create({ ...request, signal, onProgress });
  output.endProgress();
  return made;
}

/** The snapshot if it is there, made from a recipe if not. */
export async function haveSnapshot(
  context: Context,
  daemon: Forkd,
  name: string,
  recipe: string,
): Promise<SnapshotInfo> {
  const { signal } = context;
  try {
    const found = await daemon.snapshots.get(name, { signal });
    if (found.status === 'ready') return found;
    throw new ForkdError('state_conflict', `snapshot ${name} is ${found.status}`, {
      hint:
        found.status === 'failed'
          ? `Remove it with \`forkd rmi ${name}\`.`
          : 'Wait until it is ready: see `forkd images`.',
    });
  } catch (thrown) {
    if (asForkdError(thrown).code !== 'snapshot_not_found') throw thrown;
  }
  return makeSnapshot(context, daemon, { tag: name, recipe });
}

export function describe({
  tag: name,
  dir,
  status,
  branched_from,
  pause_ms,
  diff_physical_bytes,
}: SnapshotInfo): string {
  const lines = { tag: name, dir, status, branched_from, pause_ms, diff_physical_bytes };
  return Object.entries(lines)
    .filter(([, value]) => value !== undefined)
    .map(([field, value]) => `${field}: ${value}`)
    .join('\n');
}

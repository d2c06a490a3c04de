import { execFile } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { mkdir, rm, stat } from 'node:fs/promises';
import { resolve } from 'node:path';
import { promisify } from 'node:util';
import { ForkdError } from '@forkd/protocol';
import { startTime } from './processes.js';

/** Controllers this process has opened so far. */
let opened = 0;

/**
 * Where everything lives:
 *
 *     images/      kernels, initramfs and root disks, by content
 *     snapshots/   one directory per tag
 *     run/daemon/  what the daemon has open: a directory per VM, snapshots being written. Outlives it
 *     run/PID-…/   the same of a program whose VMs end with it
 *     state.db     what the daemon knows of its snapshots and sandboxes
 *     probe/       remembered answers about this host
 */
export class DataDirectory {
  readonly images: string;
  readonly snapshots: string;
  readonly probe: string;
  readonly state: string;
  /** Belongs to one controller alone. */
  readonly own: string;
  readonly #run: string;

  constructor(
    root: string,
    /** Whether VMs, and the directories they use, outlive the program. */
    readonly lasting = false,
    places: { snapshots?: string | undefined; state?: string | undefined } = {},
  ) {
    const path = resolve(root);
    this.images = `${path}/images`;
    this.snapshots = places.snapshots ?? `${path}/snapshots`;
    this.state = places.state ?? `${path}/state.db`;
    this.probe = `${path}/probe`;
    this.#run = `${path}/run`;
    this.own = `${this.#run}/${lasting ? 'daemon' : `${process.pid}-${startTime(process.pid)}-${opened++}`}`;
  }

  /** Makes the directories, and removes what programs that are no longer alive have left. */
  async open(): Promise<void> {
    for (const path of [this.images, this.snapshots, this.own]) await mkdir(path, { recursive: true, mode: 0o700 });
    await spread(this.own);
    if ((await stat(this.own)).dev !== (await stat(this.snapshots)).dev)
      throw new ForkdError('host_unfit', 'snapshots are on another file system than the data directory', {
        hint: 'A snapshot is written in the data directory and then moved to its place: put both on one file system.',
      });
    for (const owner of readdirSync(this.#run)) {
      const [pid, start] = owner.split('-').map(Number);
      if (owner !== 'daemon' && (pid === undefined || startTime(pid) !== start))
        await rm(`${this.#run}/${owner}`, { recursive: true, force: true });
    }
  }

  async close(): Promise<void> {
    if (!this.lasting) await rm(this.own, { recursive: true, force: true });
  }
}

/**
 * Has ext4 put each directory in here, with its files, in another part of the disk. It does not use a number of a deleted file again
 * for minutes, and a new file looks at all of those in its part: with the files of all VMs in one, that grew to milliseconds for each
 * VM where many came and went. Other file systems know no such flag, and need none.
 */
async function spread(directory: string): Promise<void> {
  await promisify(execFile)('chattr', ['+T', directory]).catch(() => {});
}

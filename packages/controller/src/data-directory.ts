import { readdirSync, readFileSync } from 'node:fs';
import { mkdir, rm } from 'node:fs/promises';
import { resolve } from 'node:path';

/** Controllers this process has opened so far. */
let opened = 0;

/**
 * Where everything lives:
 *
 *     images/     kernels, initramfs and root disks, by content
 *     snapshots/  one directory per tag
 *     run/OWNER/  what one running controller has open: a directory per VM, snapshots being written
 *     probe/      remembered answers about this host
 */
export class DataDirectory {
  readonly images: string;
  readonly snapshots: string;
  readonly probe: string;
  /** Belongs to one controller of this process alone, and goes with it. */
  readonly own: string;
  readonly #run: string;

  constructor(root: string) {
    const path = resolve(root);
    this.images = `${path}/images`;
    this.snapshots = `${path}/snapshots`;
    this.probe = `${path}/probe`;
    this.#run = `${path}/run`;
    this.own = `${this.#run}/${process.pid}-${startTime(process.pid)}-${opened++}`;
  }

  /** Makes the directories, and removes what programs that are no longer alive have left. */
  async open(): Promise<void> {
    for (const path of [this.images, this.snapshots, this.own]) await mkdir(path, { recursive: true, mode: 0o700 });
    for (const owner of readdirSync(this.#run)) {
      const [pid, start] = owner.split('-').map(Number);
      if (pid === undefined || startTime(pid) !== start)
        await rm(`${this.#run}/${owner}`, { recursive: true, force: true });
    }
  }

  async close(): Promise<void> {
    await rm(this.own, { recursive: true, force: true });
  }
}

/** Field 22 of /proc/PID/stat; `undefined` when there is no such process. */
function startTime(pid: number): number | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]);
  } catch {
    return undefined;
  }
}

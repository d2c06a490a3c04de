import { readFileSync, statSync } from 'node:fs';
import { mkdir, readdir, rmdir, writeFile } from 'node:fs/promises';
import { ForkdError } from '@forkd/protocol';

/** A process that has ended leaves its cgroup a moment later. */
const TRIES = 50;

/** The cgroups that bound the memory of sandboxes: v2, or v1 where the host still has that. */
export class MemoryLimits {
  /** The data directory has a folder of its own there, so that two daemons never touch each other's. */
  readonly #folder: string;
  readonly #unified: boolean;

  constructor(own: string) {
    const { dev, ino } = statSync(own);
    this.#unified = read('/sys/fs/cgroup/cgroup.controllers').split(/\s+/).includes('memory');
    this.#folder = `/sys/fs/cgroup${this.#unified ? '' : '/memory'}/forkd/${dev}-${ino}`;
  }

  /** The cgroup to start a VM in. Where it cannot be had there is no VM: a limit that does not hold is worse than none. */
  async make(id: string, mib: number): Promise<string> {
    const path = `${this.#folder}/${id}`;
    try {
      await mkdir(this.#folder, { recursive: true });
      if (this.#unified)
        for (const above of ['/sys/fs/cgroup', '/sys/fs/cgroup/forkd', this.#folder])
          await writeFile(`${above}/cgroup.subtree_control`, '+memory');
      await mkdir(path);
      await writeFile(`${path}/${this.#unified ? 'memory.max' : 'memory.limit_in_bytes'}`, String(mib * (1 << 20)));
      return path;
    } catch (cause) {
      await this.remove(id);
      throw new ForkdError('host_unfit', 'the memory limit cannot be applied on this host', {
        cause,
        hint: 'See `forkd doctor` for what its cgroups lack, or spawn without memory_limit_mib.',
      });
    }
  }

  async remove(id: string): Promise<void> {
    for (let left = TRIES; left > 0; left--)
      try {
        await rmdir(`${this.#folder}/${id}`);
        return;
      } catch (thrown) {
        if ((thrown as NodeJS.ErrnoException).code !== 'EBUSY') return;
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
  }

  /** Removes those of sandboxes that are no more. */
  async sweep(kept: Set<string>): Promise<void> {
    for (const id of await readdir(this.#folder).catch(() => []))
      if (id.startsWith('sb-') && !kept.has(id)) await this.remove(id);
    if (kept.size === 0) await rmdir(this.#folder).catch(() => {});
  }
}

function read(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}

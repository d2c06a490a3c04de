import { existsSync, readFileSync, realpathSync, statSync } from 'node:fs';
import { mkdir, readdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { ForkdError } from '@forkd/protocol';
import { enable } from './enable.js';
import { type Hierarchy, hierarchies } from './hierarchies.js';
import { CONTROLLERS, type Resource, resourcesOf, type SandboxLimits, settingsOf } from './settings.js';

/** A process that has ended leaves its cgroup a moment later. */
const TRIES = 50;

export interface CgroupOptions {
  /** @default those of this host */
  hierarchies?: Hierarchy[] | undefined;
  /** Whether a sandbox may run without a limit that cannot be applied. @default false */
  allowUnlimited?: boolean | undefined;
}

/** The cgroups that hold sandboxes to their limits: one per place in each hierarchy that has something to limit. */
export class Cgroups {
  readonly #own: string;
  readonly #hierarchies: Hierarchy[];
  readonly #allowUnlimited: boolean;
  /** The data directory has a folder of its own in each hierarchy, so that two daemons never touch each other's. */
  readonly #name: string;

  constructor(own: string, options: CgroupOptions = {}) {
    this.#own = own;
    this.#name = nameOf(own);
    const all = Object.keys(CONTROLLERS) as Resource[];
    this.#hierarchies = (options.hierarchies ?? hierarchies()).filter(({ version, controllers }) =>
      all.some((resource) => controllers.includes(CONTROLLERS[resource][version])),
    );
    this.#allowUnlimited = options.allowUnlimited ?? false;
  }

  /** The cgroups to start a VM in. Where one cannot be had there is no VM: a limit that does not hold is worse than none. */
  async make(place: string, limits: SandboxLimits): Promise<string[]> {
    const made = new Set<string>();
    for (const resource of resourcesOf(limits))
      try {
        made.add(await this.#limit(place, resource, limits));
      } catch (cause) {
        if (this.#allowUnlimited) continue;
        await this.remove(place);
        throw new ForkdError('host_unfit', `the limit of ${resource} cannot be applied on this host`, {
          cause,
          hint: 'See `forkd doctor` for what its cgroups lack, spawn without that limit, or start the daemon with --allow-unlimited true.',
        });
      }
    return [...made];
  }

  async #limit(place: string, resource: Resource, limits: SandboxLimits): Promise<string> {
    const hierarchy = this.#hierarchyOf(resource);
    if (!hierarchy) throw new Error(`no hierarchy has the controller of ${resource}`);
    const { version, path } = hierarchy;
    const folder = this.#folder(hierarchy);
    await mkdir(folder, { recursive: true });
    if (version === 2) await enable(CONTROLLERS[resource][2], path, [`${path}/forkd`, folder]);
    const group = `${folder}/${place}`;
    await mkdir(group, { recursive: true });
    const device = (): string => deviceOf(this.#own);
    // A kernel that does not count swap has no file for it.
    for (const { file, value, swap } of settingsOf(resource, limits, version, device))
      if (!swap || existsSync(`${group}/${file}`) || hasSwap())
        await writeFile(`${group}/${file}`, value, { flag: 'r+' });
    return group;
  }

  /** Whether the kernel has killed in it because it was full. To be asked before it is removed. */
  async ranOutOfMemory(place: string): Promise<boolean> {
    const hierarchy = this.#hierarchyOf('memory');
    if (!hierarchy) return false;
    const file = hierarchy.version === 2 ? 'memory.events' : 'memory.oom_control';
    const text = await readFile(`${this.#folder(hierarchy)}/${place}/${file}`, 'utf8').catch(() => '');
    const counted = (name: string): boolean => new RegExp(`^${name} [1-9]`, 'm').test(text);
    // One that was killed because the host was full has `oom_kill` too. Version 1 does not tell the two apart.
    return counted('oom_kill') && (hierarchy.version === 1 || counted('oom'));
  }

  async remove(place: string): Promise<void> {
    await Promise.all(this.#hierarchies.map((hierarchy) => remove(`${this.#folder(hierarchy)}/${place}`)));
  }

  /** Removes those of sandboxes that are no more. */
  async sweep(kept: Set<string>): Promise<void> {
    for (const hierarchy of this.#hierarchies) {
      const folder = this.#folder(hierarchy);
      for (const place of await readdir(folder).catch(() => []))
        if (place.startsWith('sb-') && !kept.has(place)) await remove(`${folder}/${place}`);
      if (kept.size === 0) await rmdir(folder).catch(() => {});
    }
  }

  #hierarchyOf(resource: Resource): Hierarchy | undefined {
    return this.#hierarchies.find(({ version, controllers }) => controllers.includes(CONTROLLERS[resource][version]));
  }

  #folder({ path }: Hierarchy): string {
    return `${path}/${this.#name}`;
  }
}

/** Of the folder below a hierarchy that belongs to a program, by the directory of its own. */
export function nameOf(own: string): string {
  const { dev, ino } = statSync(own);
  return `forkd/${dev}-${ino}`;
}

async function remove(group: string): Promise<void> {
  for (let left = TRIES; left > 0; left--)
    try {
      await rmdir(group);
      return;
    } catch (thrown) {
      if ((thrown as NodeJS.ErrnoException).code !== 'EBUSY') return;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
}

function hasSwap(): boolean {
  return readFileSync('/proc/swaps', 'utf8').trim().split('\n').length > 1;
}

/** MAJOR:MINOR of the whole disk under a directory: parts of one have no limits of their own. */
function deviceOf(directory: string): string {
  const { dev } = statSync(directory);
  // As glibc packs them.
  const [major, minor] = [(dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xfff00)];
  const device = realpathSync(`/sys/dev/block/${major}:${minor}`);
  const isPart = statSync(`${device}/partition`, { throwIfNoEntry: false }) !== undefined;
  return readFileSync(`${device}${isPart ? '/..' : ''}/dev`, 'utf8').trim();
}

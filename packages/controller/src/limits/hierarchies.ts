import { readFileSync } from 'node:fs';

/** A tree of cgroups. */
export interface Hierarchy {
  version: 1 | 2;
  path: string;
  /** What it can limit, if that is enabled. */
  controllers: string[];
}

/** Those of this host: one of version 2, one of version 1 per controller, or both. */
export function hierarchies(): Hierarchy[] {
  const found: Hierarchy[] = [];
  for (const line of readFileSync('/proc/self/mounts', 'utf8').split('\n')) {
    const [, path = '', type, options = ''] = line.split(' ');
    if (type === 'cgroup') found.push({ version: 1, path, controllers: options.split(',') });
    if (type === 'cgroup2') found.push({ version: 2, path, controllers: controllersOf(path) });
  }
  return found;
}

function controllersOf(path: string): string[] {
  try {
    return readFileSync(`${path}/cgroup.controllers`, 'utf8').trim().split(/\s+/);
  } catch {
    return [];
  }
}

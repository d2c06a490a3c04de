import { randomBytes } from 'node:crypto';
import { mkdir, rmdir, writeFile } from 'node:fs/promises';
import { type Hierarchy, hierarchies } from '@forkd/controller';
import { type Check, type Outcome, pass, warn } from './check.js';

/** For each thing worth limiting, by version: the file that limits it, and a value that does no harm. */
const LIMITS: Record<string, Record<1 | 2, [file: string, value: string]>> = {
  memory: { 1: ['memory.limit_in_bytes', '67108864'], 2: ['memory.max', '67108864'] },
  cpu: { 1: ['cpu.cfs_quota_us', '-1'], 2: ['cpu.max', 'max'] },
  pids: { 1: ['pids.max', '100'], 2: ['pids.max', '100'] },
};

const MOUNT = 'mount -t cgroup2 cgroup2 /sys/fs/cgroup, or boot with systemd, which does it.';

export const cgroupChecks: Check[] = [
  { name: 'cgroup', run: version },
  { name: 'cgroup controllers', run: controllers },
];

async function version(): Promise<Outcome> {
  const found = hierarchies();
  const versions = [...new Set(found.map((hierarchy) => hierarchy.version))].sort();
  if (versions.length === 0) return warn('no cgroup hierarchy is mounted: memory limits are not in effect', MOUNT);
  return pass(versions.length === 2 ? 'v1 and v2 (hybrid)' : `v${versions[0]}`);
}

/** A controller that the kernel has may still not be enabled, and its limits then do nothing: so a limit is really set. */
async function controllers(): Promise<Outcome> {
  const found = hierarchies();
  const usable: string[] = [];
  const problems: Problem[] = [];
  for (const [controller, files] of Object.entries(LIMITS)) {
    const hierarchy = found.find((candidate) => candidate.controllers.includes(controller));
    const problem = hierarchy
      ? await tryLimit(hierarchy, controller, ...files[hierarchy.version])
      : { reason: `${controller} is in no hierarchy`, hint: `Boot with cgroup_enable=${controller}; ${MOUNT}` };
    if (problem) problems.push(problem);
    else usable.push(`${controller} (v${hierarchy!.version})`);
  }
  if (problems.length === 0) return pass(usable.join(', '));
  const reasons = problems.map(({ reason }) => reason).join('; ');
  return warn(
    `limits are not in effect as it is: ${reasons}; usable: ${usable.join(', ') || 'none'}`,
    problems.map(({ hint }) => hint).join(' && '),
  );
}

interface Problem {
  reason: string;
  hint: string;
}

/** Sets a limit in a group of its own; `undefined` when that works. */
export async function tryLimit(
  { version, path }: Hierarchy,
  controller: string,
  file: string,
  value: string,
): Promise<Problem | undefined> {
  const group = `${path}/forkd-doctor-${process.pid}-${randomBytes(4).toString('hex')}`;
  try {
    await mkdir(group);
    try {
      await writeFile(`${group}/${file}`, value, { flag: 'r+' });
    } finally {
      await rmdir(group);
    }
    return undefined;
  } catch (thrown) {
    const { code } = thrown as NodeJS.ErrnoException;
    if (code === 'ENOENT' && version === 2)
      return {
        reason: `${controller} is there but not enabled`,
        hint: `echo +${controller} > ${path}/cgroup.subtree_control`,
      };
    const reason = `${controller}: a group in ${path} cannot be made or limited (${code})`;
    return { reason, hint: `Run as root, with ${path} writable (in a container: --privileged --cgroupns=host).` };
  }
}

import { mkdir, readFile, writeFile } from 'node:fs/promises';

/** For those that are in the way; beside the groups of sandboxes. */
const LEAF = 'forkd-rest';
/** Who moves may just have forked. */
const TRIES = 20;

/** Version 2: from the root down, each level hands the controller on to the next. */
export async function enable(controller: string, root: string, below: string[]): Promise<void> {
  try {
    await handOn(root, controller);
  } catch (thrown) {
    // In a container the root is a group like others, which may hold processes or hand controllers on, and has all of us in it.
    if ((thrown as NodeJS.ErrnoException).code !== 'EBUSY') throw thrown;
    await vacate(root);
    await handOn(root, controller);
  }
  for (const level of below) await handOn(level, controller);
}

function handOn(group: string, controller: string): Promise<void> {
  return writeFile(`${group}/cgroup.subtree_control`, `+${controller}`);
}

async function vacate(group: string): Promise<void> {
  const leaf = `${group}/${LEAF}`;
  await mkdir(leaf, { recursive: true });
  for (let left = TRIES; left > 0; left--) {
    const pids = (await readFile(`${group}/cgroup.procs`, 'utf8')).split('\n').filter(Boolean);
    if (pids.length === 0) return;
    for (const pid of pids)
      await writeFile(`${leaf}/cgroup.procs`, pid).catch((thrown: NodeJS.ErrnoException) => {
        if (thrown.code !== 'ESRCH') throw thrown;
      });
  }
}

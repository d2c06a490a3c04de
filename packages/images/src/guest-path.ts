import { chmod, lstat, mkdir, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import { ForkdError } from '@forkd/protocol';

const MAX_LINKS = 40;

/**
 * Where a guest path is on the host while its root is the directory `root`. Links are followed as the guest would see
 * them, so /var/run -> /run leads into `root` and never to the host's own /run. The last part is not followed.
 * Directories that are missing on the way are made.
 */
export async function guestPath(root: string, path: string): Promise<string> {
  const ahead = path.split('/');
  const last = ahead.pop() ?? '';
  let behind: string[] = [];
  let links = 0;
  for (let part = ahead.shift(); part !== undefined; part = ahead.shift()) {
    if (part === '' || part === '.') continue;
    if (part === '..') {
      behind.pop();
      continue;
    }
    const link = await linkTarget(join(root, ...behind, part));
    if (link === undefined) {
      behind.push(part);
      await makeDirectory(join(root, ...behind), path);
      continue;
    }
    links += 1;
    if (links > MAX_LINKS) throw new ForkdError('recipe_invalid', `${path} leads through too many symbolic links`);
    if (link.startsWith('/')) behind = [];
    ahead.unshift(...link.split('/'));
  }
  return join(root, ...behind, last);
}

async function linkTarget(path: string): Promise<string | undefined> {
  try {
    return await readlink(path);
  } catch {
    return undefined;
  }
}

async function makeDirectory(dir: string, path: string): Promise<void> {
  const found = await lstat(dir).catch(() => undefined);
  if (found?.isDirectory()) return;
  if (found) throw new ForkdError('recipe_invalid', `${path} leads through something that is not a directory`);
  await mkdir(dir);
  await chmod(dir, 0o755);
}

import { appendFile, chmod, chown, copyFile, lstat, readFile, rm, writeFile } from 'node:fs/promises';
import { ForkdError } from '@forkd/protocol';
import { guestPath } from './guest-path.js';
import type { RecipeFile } from './recipe.js';

const MOUNT_POINTS = ['/proc/', '/sys/', '/dev/', '/run/'];
const APT_LEFTOVERS = ['/var/cache/apt/archives', '/var/lib/apt/lists'];
const USER = { name: 'user', id: 1000, home: '/home/user' };

/** Turns an unpacked distribution into a guest's root: nothing in it may tell two guests apart or belong to this host. */
export async function prepareRoot(root: string, files: RecipeFile[]): Promise<void> {
  for (const dir of MOUNT_POINTS) await guestPath(root, dir);
  await chmod(await guestPath(root, '/tmp/'), 0o1777);
  for (const dir of APT_LEFTOVERS) await rm(await guestPath(root, dir), { recursive: true, force: true });
  await put(root, '/etc/machine-id', '');
  await put(root, '/etc/hostname', 'forkd\n');
  await put(root, '/etc/resolv.conf', '');
  if (!(await exists(root, '/etc/hosts'))) await put(root, '/etc/hosts', '127.0.0.1 localhost\n::1 localhost\n');
  await addUser(root);
  for (const file of files) await putFile(root, file);
}

async function putFile(root: string, file: RecipeFile): Promise<void> {
  const target = await put(root, file.path, file.content ?? '');
  if (file.source !== undefined) await copyFile(file.source, target);
  await chmod(target, Number.parseInt(file.mode, 8));
}

/** Takes the place of whatever was there, also of a symbolic link. */
async function put(root: string, path: string, content: string): Promise<string> {
  const target = await guestPath(root, path);
  if ((await stats(target))?.isDirectory())
    throw new ForkdError('recipe_invalid', `${path} is a directory in the image`);
  await rm(target, { force: true });
  await writeFile(target, content, { flag: 'wx' });
  await chmod(target, 0o644);
  return target;
}

/** The account in which sandboxes run code by default. Written by hand because the root may have no useradd. */
async function addUser(root: string): Promise<void> {
  const { name, id, home } = USER;
  const passwd = await read(root, '/etc/passwd');
  if (passwd.some((line) => line.startsWith(`${name}:`) || line.split(':')[2] === String(id))) return;
  const shell = (await exists(root, '/bin/bash')) ? '/bin/bash' : '/bin/sh';
  await append(root, '/etc/passwd', `${name}:x:${id}:${id}::${home}:${shell}\n`);
  await append(root, '/etc/group', `${name}:x:${id}:\n`);
  if (await exists(root, '/etc/shadow')) await append(root, '/etc/shadow', `${name}:*:1:0:99999:7:::\n`);
  await chown(await guestPath(root, `${home}/`), id, id);
}

async function append(root: string, path: string, line: string): Promise<void> {
  const lines = await read(root, path);
  const separator = (lines.at(-1) ?? '') === '' ? '' : '\n';
  await appendFile(await regular(root, path), separator + line);
}

async function read(root: string, path: string): Promise<string[]> {
  const target = await regular(root, path);
  return (await exists(root, path)) ? (await readFile(target, 'utf8')).split('\n') : [];
}

/** A link at this place could lead out of the root and onto a file of the host. */
async function regular(root: string, path: string): Promise<string> {
  const target = await guestPath(root, path);
  if ((await stats(target))?.isFile() === false)
    throw new ForkdError('recipe_invalid', `${path} of the image is not a plain file`);
  return target;
}

async function exists(root: string, path: string): Promise<boolean> {
  return (await stats(await guestPath(root, path))) !== undefined;
}

async function stats(path: string) {
  return await lstat(path).catch(() => undefined);
}

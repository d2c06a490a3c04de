import { mkdir, mkdtemp, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { prepareRoot } from './prepare-root.js';

let dir: string;
let root: string;

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'root-'));
  root = join(dir, 'root');
  await mkdir(join(root, 'etc'), { recursive: true });
  await mkdir(join(dir, 'host'));
});
afterEach(() => rm(dir, { recursive: true }));

const file = (path: string) => ({ path, content: 'new', mode: '0755' });

it('makes an empty directory a root with a user', async () => {
  await prepareRoot(root, [file('/opt/deep/tool')]);
  expect(await readFile(join(root, 'etc/passwd'), 'utf8')).toBe('user:x:1000:1000::/home/user:/bin/sh\n');
  expect(await readFile(join(root, 'etc/machine-id'), 'utf8')).toBe('');
  expect((await stat(join(root, 'home/user'))).uid).toBe(1000);
  expect((await stat(join(root, 'tmp'))).mode & 0o7777).toBe(0o1777);
  expect((await stat(join(root, 'opt/deep/tool'))).mode & 0o7777).toBe(0o755);
});

it('keeps the user that is there', async () => {
  await writeFile(join(root, 'etc/passwd'), 'me:x:1000:1000::/home/me:/bin/sh');
  await prepareRoot(root, []);
  expect(await readFile(join(root, 'etc/passwd'), 'utf8')).toBe('me:x:1000:1000::/home/me:/bin/sh');
});

it('ends an unfinished line before it adds one', async () => {
  await writeFile(join(root, 'etc/passwd'), 'root:x:0:0::/root:/bin/sh');
  await prepareRoot(root, []);
  expect((await readFile(join(root, 'etc/passwd'), 'utf8')).split('\n')).toHaveLength(3);
});

it.each(['host', '../host', '../../../../../../host'])('never follows the link %s out of the root', async (to) => {
  const host = join(dir, 'host');
  await symlink(to === 'host' ? host : to, join(root, 'opt'));
  await prepareRoot(root, [file('/opt/x')]);
  await expect(stat(join(host, 'x'))).rejects.toThrow();
});

it('replaces a link instead of writing through it', async () => {
  const target = join(dir, 'host/resolv.conf');
  await writeFile(target, 'mine');
  await symlink(target, join(root, 'etc/resolv.conf'));
  await prepareRoot(root, []);
  expect(await readFile(target, 'utf8')).toBe('mine');
  expect(await readFile(join(root, 'etc/resolv.conf'), 'utf8')).toBe('');
});

it('refuses a root whose accounts are a link', async () => {
  await symlink('/etc/passwd', join(root, 'etc/passwd'));
  await expect(prepareRoot(root, [])).rejects.toMatchObject({ code: 'recipe_invalid' });
});

it('refuses files that cannot be where the recipe wants them', async () => {
  await symlink('b', join(root, 'a'));
  await symlink('a', join(root, 'b'));
  for (const path of ['/etc', '/etc/hostname/x', '/a/x'])
    await expect(prepareRoot(root, [file(path)])).rejects.toMatchObject({ code: 'recipe_invalid' });
});

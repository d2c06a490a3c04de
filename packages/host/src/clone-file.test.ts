import { execFileSync } from 'node:child_process';
import {
  closeSync,
  existsSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { afterAll, afterEach, expect, it } from 'vitest';
import { HostHelper } from './host-helper.js';
import { temporaryDirectory } from './testing.js';

const MIB = 1 << 20;
const root = temporaryDirectory();
const helper = HostHelper.start();
const mounts: string[] = [];
afterEach(() => {
  for (const mount of mounts.splice(0)) execFileSync('umount', [mount]);
});
afterAll(() => helper[Symbol.asyncDispose]());

/** 64 MiB with one MiB of data in the middle. */
function sparse(path: string): string {
  const file = openSync(path, 'w');
  ftruncateSync(file, 64 * MIB);
  writeSync(file, Buffer.alloc(MIB, 'x'), 0, MIB, 20 * MIB);
  closeSync(file);
  return path;
}

function mounted(name: string, ...args: string[]): string {
  const path = `${root}/${name}`;
  mkdirSync(path);
  execFileSync('mount', [...args, path]);
  mounts.push(path);
  return path;
}

it('a sparse file stays sparse and equal', async () => {
  const from = sparse(`${root}/sparse`);
  const { method, bytes } = await helper.cloneFile(from, `${root}/sparse-clone`);
  if (method === 'copy') expect(bytes).toBeLessThan(2 * MIB);
  expect(statSync(`${root}/sparse-clone`).blocks * 512).toBeLessThan(2 * MIB);
  expect(readFileSync(`${root}/sparse-clone`).equals(readFileSync(from))).toBe(true);
});

it('also from one file system to another', async () => {
  const from = sparse(`${root}/here`);
  const to = `${mounted('there', '-t', 'tmpfs', '-o', 'size=16m', 'forkd-test')}/clone`;
  await helper.cloneFile(from, to);
  expect(readFileSync(to).equals(readFileSync(from))).toBe(true);
});

it('a target that exists is not touched, be it a file or a link', async () => {
  const from = sparse(`${root}/source`);
  writeFileSync(`${root}/taken`, 'mine');
  symlinkSync(`${root}/elsewhere`, `${root}/link`);
  await expect(helper.cloneFile(from, `${root}/taken`)).rejects.toThrow('File exists');
  await expect(helper.cloneFile(from, `${root}/link`)).rejects.toThrow('File exists');
  expect(readFileSync(`${root}/taken`, 'utf8')).toBe('mine');
  expect(existsSync(`${root}/elsewhere`)).toBe(false);
});

it('a full disk is said to be one, and nothing is left of the clone', async () => {
  const from = `${root}/large`;
  writeFileSync(from, Buffer.alloc(8 * MIB, 'x'));
  const to = `${mounted('small', '-t', 'tmpfs', '-o', 'size=2m', 'forkd-test')}/clone`;
  await expect(helper.cloneFile(from, to)).rejects.toMatchObject({ code: 'disk_full' });
  expect(existsSync(to)).toBe(false);
});

it('where the file system can share blocks, it does', async ({ skip }) => {
  const mkfs = ['/usr/sbin/mkfs.xfs', '/sbin/mkfs.xfs'].find((path) => existsSync(path));
  if (!mkfs) skip('mkfs.xfs is not installed (Debian package xfsprogs)');
  const image = `${root}/xfs.img`;
  execFileSync('truncate', ['-s', '512M', image]);
  execFileSync(mkfs!, ['-q', '-m', 'reflink=1', image]);
  const mount = mounted('xfs', '-o', 'loop', image);
  const from = sparse(`${mount}/from`);
  expect(await helper.cloneFile(from, `${mount}/to`)).toEqual({ method: 'reflink', bytes: 0 });
  expect(readFileSync(`${mount}/to`).equals(readFileSync(from))).toBe(true);
});

import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import {
  copyFileSync,
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { leaks, NO_LEAKS } from '@forkd/controller';
import { buildKernel, buildRootDisk, loadRecipe } from '@forkd/images';
import type { CreateSnapshot } from '@forkd/protocol';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { fromKernelAndRootfs } from './kernel-and-rootfs.js';

const REPOSITORY = fileURLToPath(new URL('../../..', import.meta.url));
const IMAGES = resolve(process.env.FORKD_DATA ?? `${REPOSITORY}/.forkd`, 'images');
const root = mkdtempSync(`${tmpdir()}/forkd-foreign-`);
const data = `${root}/data`;
const kernel = `${root}/boot/vmlinux`;
const rootfs = `${root}/boot/root.ext4`;
let daemon: ChildProcess;
let url: string;

/** What a user would have: files of their own, here with what the recipe has built. */
beforeAll(async () => {
  const store = { store: IMAGES };
  const debian = await buildKernel(store);
  const base = await buildRootDisk(await loadRecipe('python-numpy', `${REPOSITORY}/recipes`), store);
  mkdirSync(`${root}/boot/modules`, { recursive: true });
  copyFileSync(debian.path, kernel);
  for (const path of debian.modules) copyFileSync(path, `${root}/boot/modules/${basename(path).replace(/^\d+-/, '')}`);
  writeFileSync(`${root}/boot/modules/modules.builtin`, 'kernel/fs/ext4/ext4.ko\n');
  execFileSync('cp', ['--sparse=always', base.path, rootfs]);
  mkdirSync(data, { mode: 0o700 });
  // A store of its own, with the one kernel that a daemon wants at its start: it must not get the foreign images.
  mkdirSync(`${data}/images`);
  const known = resolve(debian.path, '..');
  cpSync(known, `${data}/images/${basename(known)}`, { recursive: true });

  const args = [`${REPOSITORY}/packages/daemon/dist/main.js`, '--bind', '127.0.0.1:0', '--data', data];
  daemon = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  url = await new Promise((found, failed) => {
    daemon.once('exit', () => failed(new Error('the daemon ended')));
    daemon.stdout!.on('data', (chunk: Buffer) => {
      const address = /http:\/\/127\.0\.0\.1:\d+/.exec(chunk.toString());
      if (address) found(address[0]);
    });
  });
}, 300_000);

afterAll(async () => {
  const ended = new Promise((done) => daemon.once('exit', done));
  daemon.kill('SIGTERM');
  await ended;
  expect(leaks(data)).toEqual(NO_LEAKS);
  rmSync(root, { recursive: true });
});

async function call(method: string, path: string, body?: unknown) {
  const json = { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) };
  const reply = await fetch(url + path, { method, ...(body === undefined ? {} : json) });
  const text = await reply.text();
  return { status: reply.status, body: text === '' ? undefined : JSON.parse(text) };
}

const create = (files: { kernel?: string; rootfs?: string }, more: object = {}) =>
  call('POST', '/v1/snapshots', { tag: 'foreign', kernel, rootfs, ...files, ...more });

describe('files that are refused', () => {
  const file = (name: string, content: string | Buffer): string => {
    writeFileSync(`${root}/${name}`, content);
    return `${root}/${name}`;
  };
  const link = (name: string, target: string): string => {
    symlinkSync(target, `${root}/${name}`);
    return `${root}/${name}`;
  };
  const fifo = `${root}/fifo`;
  beforeAll(() => execFileSync('mkfifo', [fifo]));

  it.each<[string, () => string, RegExp]>([
    ['one that is not there', () => `${root}/absent`, /no such file/],
    ['a directory', () => root, /not a regular file/],
    ['a fifo', () => fifo, /not a regular file|cannot be read/],
    ['a device', () => '/dev/zero', /not a regular file/],
    ['a file of /proc', () => '/proc/version', /not a regular file/],
    ['a link to a file of /proc', () => link('link-proc', '/proc/self/environ'), /not a regular file/],
    ['a link that leads nowhere', () => link('link-nowhere', `${root}/absent`), /no such file/],
    ['an empty file', () => file('empty', ''), /empty/],
    ['text', () => file('text', 'text '.repeat(1000)), /not a disk image|neither a vmlinux/],
    ['a link to secrets', () => link('link-secret', '/etc/shadow'), /not a disk image|neither a vmlinux/],
    [
      'something cut short',
      () => file('short', readFileSync(kernel).subarray(0, 1 << 20)),
      /not a disk image|not contain a Linux kernel|cut short/,
    ],
  ])('%s, as kernel or as rootfs', async (_, make, message) => {
    const path = make();
    for (const field of ['kernel', 'rootfs'] as const) {
      const reply = await create({ [field]: path });
      expect([reply.status, reply.body.code]).toEqual([400, 'invalid_request']);
      expect(reply.body.error).toMatch(new RegExp(`^body\\.${field}: `));
      expect(reply.body.error).toMatch(message);
      expect(JSON.stringify(reply.body)).not.toMatch(/root:|forkd-foreign/);
    }
    rmSync(`${root}/${basename(path)}`, { force: true });
  });

  it('paths that are none, and half of a pair', async () => {
    for (const bad of ['relative', '', '/x\0y', 7, null, '/'.repeat(5000)])
      expect((await call('POST', '/v1/snapshots', { tag: 'a', kernel: bad, rootfs })).status).toBe(400);
    expect((await call('POST', '/v1/snapshots', { tag: 'a', kernel })).status).toBe(400);
    expect((await create({}, { recipe: 'python-numpy' })).status).toBe(400);
    expect((await create({}, { boot_wait_secs: 61 })).status).toBe(400);
  });

  it('any, from a caller who is no admin', async () => {
    const body = { tag: 'a', kernel: '/etc/shadow', rootfs: '/etc/shadow' } as CreateSnapshot;
    for (const role of ['user', 'read'] as const)
      await expect(fromKernelAndRootfs(body, { name: 'ann', role }, root)).rejects.toMatchObject({ code: 'forbidden' });
  });

  it('leave nothing behind', async () => {
    expect((await call('GET', '/v1/snapshots')).body).toEqual([]);
    expect(readdirSync(`${data}/images`).filter((name) => /^(\.tmp|base)/.test(name))).toEqual([]);
  });
});

it('a kernel and a root disk of the user become a snapshot in which eval works, and stay as they are', async () => {
  const marks = () =>
    [kernel, rootfs]
      .map((path) => statSync(path))
      .map(({ ino, mtimeMs, ctimeMs, nlink }) => ({ ino, mtimeMs, ctimeMs, nlink }));
  const before = marks();
  const created = await create({}, { rw: true, tap: 'forkd-tap0', boot_wait_secs: 30, memory_mib: 256, vcpus: 1 });
  expect([created.status, created.body]).toMatchObject([
    201,
    { tag: 'foreign', status: 'ready', bootable: true, memory_mib: 256, warning: expect.stringContaining('tap') },
  ]);
  const text = readFileSync(`${data}/snapshots/foreign/snapshot.json`, 'utf8');
  expect(text).not.toContain(root);
  expect(JSON.parse(text)).toMatchObject({ language: 'python', recipe: 'rootfs' });
  const [sandbox] = (await call('POST', '/v1/sandboxes', { snapshot_tag: 'foreign', n: 1 })).body;
  const path = `/v1/sandboxes/${sandbox.id}`;
  const evaluated = await call('POST', `${path}/eval`, { code: 'numpy.ones(2).tolist()' });
  expect(evaluated.body).toMatchObject({ result: '[1.0, 1.0]', exit_code: 0 });
  const wrote = await call('POST', `${path}/exec`, { args: ['sh', '-c', 'echo mine > /etc/motd && cat /etc/motd'] });
  expect(wrote.body).toMatchObject({ stdout: 'mine\n', exit_code: 0 });
  expect((await call('DELETE', path)).status).toBe(204);
  expect(marks()).toEqual(before);
  expect((await call('DELETE', '/v1/snapshots/foreign')).status).toBe(204);
}, 180_000);

import { execFileSync } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { buildKernel } from './kernel.js';
import { processesNaming } from './processes-naming.js';
import type { Progress } from './progress.js';
import { buildRootDisk, type RootSource, rootInputs } from './root-disk.js';
import { buildUpper } from './upper.js';

let dir: string;
let store: string;
let source: RootSource;

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'disk-'));
  store = join(dir, 'store');
  const directory = join(dir, 'root');
  await mkdir(join(directory, 'bin'), { recursive: true });
  await writeFile(join(directory, 'bin/tool'), 'x'.repeat(10_000));
  await chmod(join(directory, 'bin/tool'), 0o4755);
  await symlink('/bin/tool', join(directory, 'link'));
  source = { base: { directory, packages: [] }, files: [{ path: '/opt/x.py', content: 'print()', mode: '0640' }] };
});
afterEach(() => rm(dir, { recursive: true }));

function debugfs(image: string, request: string): string {
  return execFileSync('debugfs', ['-R', request, image], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
}

function check(image: string): string {
  return execFileSync('e2fsck', ['-fn', image], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
}

describe('a root disk from a directory', () => {
  it('holds its files and those of the recipe', async () => {
    const { path, hash } = await buildRootDisk(source, { store });
    expect(hash).toMatch(/^[0-9a-f]{64}$/);
    expect(check(path)).toMatch(/Pass 5/);
    expect(debugfs(path, 'stat /bin/tool')).toMatch(/Mode: +04755[\s\S]*Size: 10000/);
    expect(debugfs(path, 'stat /link')).toContain('/bin/tool');
    expect(debugfs(path, 'cat /opt/x.py')).toBe('print()');
    expect(debugfs(path, 'stat /home/user')).toMatch(/User: +1000/);
    expect(debugfs(path, 'features')).not.toContain('has_journal');
  });

  it('is built again only when something in it changes', async () => {
    const first = await buildRootDisk(source, { store });
    const began = performance.now();
    expect(await buildRootDisk(source, { store })).toEqual(first);
    expect(performance.now() - began).toBeLessThan(50);
    await writeFile(join(dir, 'root/bin/tool'), 'y'.repeat(10_000));
    expect((await buildRootDisk(source, { store })).path).not.toBe(first.path);
  });

  it('can be built by two at once', async () => {
    const [one, two] = await Promise.all([buildRootDisk(source, { store }), buildRootDisk(source, { store })]);
    expect(one).toEqual(two);
    expect(await readdir(store)).toHaveLength(1);
  });

  it('asks for its tools before it starts', async () => {
    await expect(buildRootDisk(source, { store, tools: dir })).rejects.toMatchObject({
      code: 'host_unfit',
      hint: expect.stringContaining('e2fsprogs'),
    });
    await expect(readdir(store)).rejects.toThrow();
  });
});

it('has another key for another package list, not for another order', async () => {
  const inputs = (...packages: string[]) => rootInputs({ base: { debian: 'bookworm', packages }, files: [] });
  expect(await inputs('a', 'b')).toEqual(await inputs('b', 'a'));
  expect(await inputs('a', 'b')).not.toEqual(await inputs('a'));
});

it('reports a package that does not exist', async () => {
  const tools = join(dir, 'tools');
  await mkdir(tools);
  const script = '#!/bin/sh\necho "E: Unable to locate package no-such-package" >&2\nexit 25\n';
  await writeFile(join(tools, 'mmdebstrap'), script, { mode: 0o755 });
  const missing = { base: { debian: 'bookworm', packages: ['no-such-package'] }, files: [] };
  await expect(buildRootDisk(missing, { store, tools: `${tools}:${process.env.PATH}` })).rejects.toMatchObject({
    code: 'recipe_invalid',
    message: 'base.packages: Debian bookworm has no package no-such-package',
  });
});

it('leaves no file and no process behind when it is aborted', async () => {
  const before = (await readdir(tmpdir())).filter((name) => name.startsWith('mmdebstrap'));
  const abort = new AbortController();
  const onProgress = ({ detail }: Progress) => {
    if (detail?.startsWith('extracting')) setTimeout(() => abort.abort(), 500);
  };
  const debian = buildRootDisk(
    { base: { debian: 'bookworm', packages: [] }, files: [] },
    { store, onProgress, signal: abort.signal },
  );
  await expect(debian).rejects.toMatchObject({ code: 'cancelled' });
  expect(await readdir(store)).toEqual([]);
  expect(await processesNaming(dir)).toEqual([]);
  expect((await readdir(tmpdir())).filter((name) => name.startsWith('mmdebstrap'))).toEqual(before);
  expect(await readFile('/proc/self/mountinfo', 'utf8')).not.toContain(dir);
}, 60_000);

describe('on a disk of 20 MiB', () => {
  beforeEach(async () => {
    await mkdir(store);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=20m', 'tmpfs', store]);
  });
  afterEach(() => execFileSync('umount', [store]));

  it('a root disk is refused before the work', async () => {
    await writeFile(join(dir, 'root/large'), Buffer.alloc(15 * 1024 * 1024, 1));
    await expect(buildRootDisk(source, { store })).rejects.toMatchObject({
      code: 'disk_full',
      message: expect.stringMatching(/needs 31 MiB .* 20 MiB left/),
    });
    expect(await readdir(store)).toEqual([]);
  });

  it('a download that does not fit leaves nothing', async () => {
    await expect(buildKernel({ store })).rejects.toMatchObject({ code: 'disk_full' });
    expect(await readdir(store)).toEqual([]);
  }, 60_000);
});

it('makes the writable disk sparse and complete', async () => {
  const path = await buildUpper(2048, { store });
  const { size, blocks } = await stat(path);
  expect(size).toBe(2048 * 1024 * 1024);
  expect(blocks * 512).toBeLessThan(1024 * 1024);
  expect(check(path)).toMatch(/Pass 5/);
  expect(debugfs(path, 'ls -p /')).toMatch(/\/040755\/0\/0\/upper\/[\s\S]*\/040755\/0\/0\/work\//);
  const groups = execFileSync('dumpe2fs', [path], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  expect(groups.match(/^Group \d+:/gm)).toHaveLength(groups.match(/ITABLE_ZEROED/g)?.length ?? 0);
});

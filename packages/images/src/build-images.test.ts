import { execFileSync } from 'node:child_process';
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { buildImages } from './build-images.js';
import { bootsByPvh } from './elf-kernel.js';
import { buildKernel } from './kernel.js';
import { loadRecipe } from './load-recipe.js';

const RECIPES = join(import.meta.dirname, '../../../recipes');
/** The store all tests and the demo share: the Debian images are built once per checkout. */
const STORE = process.env.FORKD_TEST_STORE ?? join(import.meta.dirname, '../../../.forkd/images');
const FIRST_BUILD = 300_000;
let dir: string;
let agent: string;

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'images-'));
  agent = join(dir, 'agent');
  await writeFile(agent, 'stands in for the agent');
});
afterAll(() => rm(dir, { recursive: true }));

it(
  'builds all a guest needs, and the second time at once',
  async () => {
    const recipe = await loadRecipe('python-numpy', RECIPES);
    const images = await buildImages(recipe, { store: STORE, agent });
    expect(images.kernelRelease).toMatch(/^\d+\.\d+.*cloud-amd64$/);
    for (const path of [images.kernel, images.initramfs, images.base, images.upper])
      expect((await stat(path)).size).toBeGreaterThan(0);

    const began = performance.now();
    expect(await buildImages(recipe, { store: STORE, agent })).toEqual(images);
    expect(performance.now() - began).toBeLessThan(50);

    const find = ['-R', 'stat /usr/lib/python3/dist-packages/numpy/__init__.py', images.base];
    expect(execFileSync('debugfs', find, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })).toMatch(/regular/);
  },
  FIRST_BUILD,
);

it(
  'takes a plain kernel out of the Debian package, with the modules of virtio first',
  async () => {
    const kernel = await buildKernel({ store: STORE });
    expect(basename(kernel.path)).toBe('vmlinux');
    expect(bootsByPvh(await readFile(kernel.path))).toBe(true);
    const names = kernel.modules.map((path) => basename(path).replace(/^\d+-/, ''));
    expect(names.slice(0, 3)).toEqual(['virtio.ko', 'virtio_ring.ko', 'virtio_mmio.ko']);
    for (const name of ['virtio_blk.ko', 'virtio_console.ko', 'virtio_net.ko', 'overlay.ko'])
      expect(names).toContain(name);
  },
  FIRST_BUILD,
);

it(
  'takes a kernel of the user',
  async () => {
    const { path, hash, release } = await buildKernel({ store: STORE });
    const own = await buildKernel({ store: join(dir, 'store') }, { path });
    expect(own).toMatchObject({ hash, release, modules: [] });
    await expect(buildKernel({ store: join(dir, 'store') }, { path: agent })).rejects.toMatchObject({
      code: 'invalid_request',
      message: expect.stringContaining('neither a vmlinux nor a bzImage'),
    });
    await expect(buildKernel({ store: join(dir, 'store') }, { path: '/absent' })).rejects.toMatchObject({
      code: 'invalid_request',
    });
  },
  FIRST_BUILD,
);

it('says what to do on a host without apt', async () => {
  await expect(buildKernel({ store: join(dir, 'store'), tools: dir })).rejects.toMatchObject({
    code: 'host_unfit',
    hint: expect.stringContaining('path of a guest kernel'),
  });
});

it(
  'says how to get the agent when it is not built',
  async () => {
    const recipe = await loadRecipe('python-numpy', RECIPES);
    await expect(buildImages(recipe, { store: STORE, agent: '/absent' })).rejects.toMatchObject({
      code: 'host_unfit',
      hint: expect.stringContaining('cargo build'),
    });
  },
  FIRST_BUILD,
);

import { execFileSync } from 'node:child_process';
import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { absentDrivers } from './elf-kernel.js';
import { foreignKernel } from './foreign-kernel.js';
import { buildForeignRoot } from './foreign-root.js';
import { buildKernel, type Kernel } from './kernel.js';

const root = mkdtempSync(`${tmpdir()}/foreign-`);
const store = `${root}/store`;
afterAll(() => rmSync(root, { recursive: true }));

/** Bug classes 19, 28 and 29: guests that share a writable root, or that depend on where the user's file lies. */
describe('a root disk of the user', () => {
  const image = `${root}/image.ext4`;
  beforeAll(() => {
    execFileSync('/usr/sbin/mkfs.ext4', ['-q', '-F', image, '8M']);
  });

  it('is copied, never opened for writing, and never followed afterwards', async () => {
    const [before, content] = [statSync(image), readFileSync(image)];
    const { path, hash } = await buildForeignRoot(image, { store });
    expect(readFileSync(path).equals(content)).toBe(true);
    expect(statSync(path).ino).not.toBe(before.ino);
    const after = statSync(image);
    expect([after.mtimeMs, after.ctimeMs, after.nlink]).toEqual([before.mtimeMs, before.ctimeMs, 1]);
    expect(readFileSync(join(path, '../meta.json'), 'utf8')).not.toContain(root);

    writeFileSync(image, 'x', { flag: 'r+' });
    expect(readFileSync(path).equals(content)).toBe(true);
    writeFileSync(image, content);
    expect(await buildForeignRoot(image, { store })).toEqual({ path, hash });
  });

  it('that turns out to be none leaves nothing behind', async () => {
    const before = readdirSync(store);
    writeFileSync(`${root}/text`, 'text');
    await expect(buildForeignRoot(`${root}/text`, { store })).rejects.toMatchObject({ code: 'invalid_request' });
    expect(readdirSync(store)).toEqual(before);
  });
});

describe('a kernel of the user', () => {
  const shared = process.env.FORKD_TEST_STORE ?? join(import.meta.dirname, '../../../.forkd/images');
  let debian: Kernel;
  beforeAll(async () => {
    debian = await buildKernel({ store: process.env.FORKD_DATA ? `${process.env.FORKD_DATA}/images` : shared });
    copyFileSync(debian.path, `${root}/vmlinux`);
  }, 300_000);

  it('whose drivers are modules is refused without them, saying which and where they are looked for', async () => {
    await expect(foreignKernel(`${root}/vmlinux`, 'ext4', { store })).rejects.toMatchObject({
      code: 'invalid_request',
      message: expect.stringMatching(/virtio-mmio, virtio_blk, virtio_console not built in/),
      hint: expect.stringContaining(`/lib/modules/${debian.release}`),
    });
  });

  it('takes the modules that lie beside it', async () => {
    const modules = `${root}/modules`;
    mkdirSync(modules);
    for (const path of debian.modules) copyFileSync(path, `${modules}/${basename(path).replace(/^\d+-/, '')}`);
    await expect(foreignKernel(`${root}/vmlinux`, 'ext4', { store })).rejects.toMatchObject({
      message: 'the kernel has no module ext4',
    });
    writeFileSync(`${modules}/modules.builtin`, 'kernel/fs/ext4/ext4.ko\n');
    expect(await foreignKernel(`${root}/vmlinux`, 'ext4', { store })).toMatchObject({ modules });
    const built = await buildKernel({ store }, { path: `${root}/vmlinux`, modules });
    expect(built.absent).toEqual([]);
    expect(built.modules.map((path) => basename(path))).toEqual(debian.modules.map((path) => basename(path)));
    await expect(
      buildKernel({ store }, { path: `${root}/vmlinux`, modules, fileSystem: 'erofs' }),
    ).rejects.toMatchObject({ message: expect.stringContaining('no module erofs') });
  });

  it('with drivers built in needs none', () => {
    const kernel = Buffer.from('…\0virtio_blk\0dev_virtio_console\0virtio-mmio\0');
    expect(absentDrivers(kernel, ['virtio_blk', 'virtio_console', 'virtio-mmio', 'squashfs'])).toEqual(['squashfs']);
  });

  it('that is cut short is refused', async () => {
    writeFileSync(`${root}/short`, readFileSync(`${root}/vmlinux`).subarray(0, 30 << 20));
    await expect(buildKernel({ store }, { path: `${root}/short` })).rejects.toMatchObject({
      code: 'invalid_request',
      message: expect.stringContaining('cut short'),
    });
  });
});

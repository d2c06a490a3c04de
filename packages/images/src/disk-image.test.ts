import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { afterAll, expect, it } from 'vitest';
import { diskImage, superblock } from './disk-image.js';

const root = mkdtempSync(`${tmpdir()}/disk-image-`);
afterAll(() => rmSync(root, { recursive: true }));

function ext4(name: string): string {
  const path = `${root}/${name}`;
  execFileSync('mkfs.ext4', ['-q', '-F', path, '8M'], { env: { PATH: '/usr/bin:/usr/sbin:/bin:/sbin' } });
  return path;
}

const refused = (message: RegExp) => ({ code: 'invalid_request', message: expect.stringMatching(message) });

it('ext4 is known by its superblock, whatever the file is called', async () => {
  expect(await diskImage(ext4('image.txt'))).toBe('ext4');
});

it('an image that is cut short is refused', async () => {
  const path = ext4('short');
  truncateSync(path, 4 << 20);
  await expect(diskImage(path)).rejects.toMatchObject(refused(/cut short/));
});

/** Bug class 29: a disk whose journal was never replayed goes into the next snapshot. */
it('an image that was not unmounted, or that is damaged, is refused with the way out', async () => {
  for (const [request, message] of [
    ['feature needs_recovery', /not cleanly unmounted/],
    ['set_super_value state 2', /damaged/],
  ] as const) {
    const path = ext4('dirty');
    execFileSync('debugfs', ['-w', '-R', request, path], { stdio: 'ignore' });
    const before = readFileSync(path);
    await expect(diskImage(path)).rejects.toMatchObject({
      ...refused(message),
      hint: expect.stringContaining('e2fsck'),
    });
    expect(readFileSync(path).equals(before)).toBe(true);
  }
});

it('squashfs and erofs are known, with their size', () => {
  const squashfs = Buffer.alloc(2048);
  squashfs.write('hsqs');
  squashfs.writeBigUInt64LE(123_456n, 40);
  expect(superblock(squashfs)).toEqual({ kind: 'squashfs', bytes: 123_456 });
  const erofs = Buffer.alloc(2048);
  erofs.writeUInt32LE(0xe0f5e1e2, 1024);
  erofs[1024 + 12] = 12;
  erofs.writeUInt32LE(10, 1024 + 36);
  expect(superblock(erofs)).toEqual({ kind: 'erofs', bytes: 40_960 });
});

it('anything else is refused', async () => {
  for (const content of ['', 'root:*:1:0:::::\n', 'x'.repeat(1 << 20), Buffer.alloc(1 << 20)]) {
    writeFileSync(`${root}/other`, content);
    await expect(diskImage(`${root}/other`)).rejects.toMatchObject(refused(/not a disk image/));
  }
});

import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { afterAll, expect, it } from 'vitest';
import { DataDirectory } from './data-directory.js';

const root = mkdtempSync(`${tmpdir()}/forkd-data-`);
afterAll(() => rmSync(root, { recursive: true }));

it('on ext4 the files of VMs are not all in one part of the disk', async ({ skip }) => {
  if (execFileSync('stat', ['-f', '-c', '%T', root], { encoding: 'utf8' }).trim() !== 'ext2/ext3')
    skip(`${tmpdir()} is not on ext4`);
  const data = new DataDirectory(root);
  await data.open();
  expect(execFileSync('lsattr', ['-d', data.own], { encoding: 'utf8' }).split(' ')[0]).toContain('T');
  await data.close();
});

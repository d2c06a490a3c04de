import { execFileSync, spawnSync } from 'node:child_process';
import { expect, it } from 'vitest';
import { cpioArchive } from './cpio.js';

const ENTRIES = [
  { path: 'dev', mode: 0o040755 },
  { path: 'dev/console', mode: 0o020600, device: [5, 1] as [number, number] },
  { path: 'init', mode: 0o100755, data: Buffer.from('#!/bin/sh') },
];

it('is laid out as the kernel expects', () => {
  const archive = cpioArchive(ENTRIES);
  const init = archive.indexOf('init\0') - 110;
  expect(init % 4).toBe(0);
  expect(archive.toString('latin1', init, init + 110)).toBe(
    `070701${['3', '81ed', '0', '0', '1', '0', '9', '0', '0', '0', '0', '5', '0'].map((field) => field.padStart(8, '0')).join('')}`,
  );
  expect(archive.length % 4).toBe(0);
  expect(archive.includes('TRAILER!!!')).toBe(true);
});

it('is the same for the same input', () => {
  expect(cpioArchive(ENTRIES)).toEqual(cpioArchive(ENTRIES));
});

it.skipIf(spawnSync('cpio', ['--version']).error)('is read by cpio', () => {
  const listing = execFileSync('cpio', ['-tv', '--quiet'], { input: cpioArchive(ENTRIES), encoding: 'utf8' });
  expect(listing.split('\n').map((line) => line.split(/\s+/).at(-1))).toEqual(['dev', 'dev/console', 'init', '']);
  expect(listing).toMatch(/^crw-------.* 5, +1 .*dev\/console$/m);
});

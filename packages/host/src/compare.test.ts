import {
  closeSync,
  copyFileSync,
  linkSync,
  mkdtempSync,
  openSync,
  rmSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { afterAll, expect, it } from 'vitest';
import { HostHelper } from './host-helper.js';

const PAGE = 4096;
const root = mkdtempSync(`${tmpdir()}/forkd-compare-`);
const helper = HostHelper.start();
afterAll(async () => {
  await helper[Symbol.asyncDispose]();
  rmSync(root, { recursive: true });
});

const memory = `${root}/memory.img`;
writeFileSync(memory, Buffer.alloc(1024 * PAGE, 7));

function sparse(name: string, pages: Record<number, number>): string {
  const path = `${root}/${name}`;
  writeFileSync(path, '');
  truncateSync(path, 1024 * PAGE);
  const file = openSync(path, 'r+');
  for (const [page, byte] of Object.entries(pages))
    writeSync(file, Buffer.alloc(PAGE, byte), 0, PAGE, Number(page) * PAGE);
  closeSync(file);
  return path;
}

it('counts the pages that differ: also those that are zero now, not those that are the same over both', async () => {
  const a = sparse('a', { 3: 1, 4: 0, 1000: 5 });
  const b = sparse('b', { 3: 1, 900: 9, 1000: 6 });
  expect(await helper.compare({ memory, diff: a }, { memory, diff: b })).toEqual({ pages: 1024, changed: 3 });
  expect(await helper.compare({ memory, diff: a }, { memory })).toEqual({ pages: 1024, changed: 3 });
  linkSync(memory, `${root}/linked`);
  expect(await helper.compare({ memory }, { memory: `${root}/linked` })).toEqual({ pages: 1024, changed: 0 });
  copyFileSync(memory, `${root}/copy`);
  expect(await helper.compare({ memory: `${root}/copy`, diff: a }, { memory, diff: b })).toMatchObject({ changed: 3 });
});

it('of another size, or not there: an error', async () => {
  writeFileSync(`${root}/small`, Buffer.alloc(PAGE));
  await expect(helper.compare({ memory }, { memory: `${root}/small` })).rejects.toThrow('same size');
  await expect(helper.compare({ memory }, { memory: `${root}/absent` })).rejects.toThrow();
});

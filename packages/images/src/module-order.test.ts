import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type WantedModule, writeModules } from './module-order.js';

let dir: string;

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'modules-'));
  for (const name of ['kernel/net', 'out', 'work']) await mkdir(join(dir, name), { recursive: true });
  await writeFile(join(dir, 'modules.builtin'), 'kernel/fs/ext4.ko\nkernel/lib/crc-16.ko\n');
});
afterEach(() => rm(dir, { recursive: true }));

async function module(file: string, ...depends: string[]): Promise<void> {
  const plain = Buffer.from(`ELF\0license=GPL\0depends=${depends.join()}\0name=x\0`);
  await writeFile(join(dir, 'kernel/net', file), file.endsWith('.gz') ? gzipSync(plain) : plain);
}

function order(...wanted: WantedModule[]): Promise<string[]> {
  return writeModules(dir, wanted, join(dir, 'out'), join(dir, 'work'), {});
}

it('puts what a module needs before it, once, and leaves out what is built in', async () => {
  await module('net-card.ko', 'bus', 'fail-over', 'crc16', 'crc_16');
  await module('fail_over.ko', 'bus');
  await module('bus.ko');
  await module('crc16.ko');
  expect(await order({ name: 'bus' }, { name: 'net_card' }, { name: 'ext4' })).toEqual([
    '00-bus.ko',
    '01-fail_over.ko',
    '02-crc16.ko',
    '03-net_card.ko',
  ]);
});

it('stores compressed modules in plain form', async () => {
  await module('bus.ko.gz');
  expect(await order({ name: 'bus' })).toEqual(['00-bus.ko']);
  expect(await readFile(join(dir, 'out/00-bus.ko'), 'latin1')).toMatch(/^ELF/);
});

it('names a module that is missing and who needs it, unless it is optional', async () => {
  await module('card.ko', 'bus');
  await expect(order({ name: 'absent' })).rejects.toThrow('no module absent');
  await expect(order({ name: 'card' })).rejects.toThrow('no module bus, which card needs');
  expect(await order({ name: 'absent', optional: true })).toEqual([]);
});

it('ends on modules that need each other', async () => {
  await module('a.ko', 'b');
  await module('b.ko', 'a');
  expect(await order({ name: 'a' })).toHaveLength(2);
});

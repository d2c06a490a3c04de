import { spawnSync } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { z } from 'zod';
import { storedEntry } from './entry.js';

let store: string;
let builds: number;

beforeEach(async () => {
  store = await mkdtemp(join(tmpdir(), 'store-'));
  builds = 0;
});
afterEach(() => rm(store, { recursive: true }));

function build(inputs: unknown, fill: (out: string) => Promise<void> = async () => {}, signal?: AbortSignal) {
  return storedEntry(
    { store, signal },
    {
      kind: 'thing',
      inputs,
      info: z.object({ nth: z.number() }),
      async build(out) {
        builds += 1;
        const nth = builds;
        await writeFile(join(out, 'file'), 'content');
        await fill(out);
        return { nth };
      },
    },
  );
}

it('builds once for equal inputs, in whatever order their fields come', async () => {
  const first = await build({ a: 1, b: [2] });
  expect(await build({ b: [2], a: 1 })).toEqual(first);
  expect(first.dir).toMatch(/\/thing-[0-9a-f]{16}$/);
  expect(await readdir(store)).toHaveLength(1);
});

it('builds anew when an input changes', async () => {
  await build({ packages: ['a', 'b'] });
  await build({ packages: ['a', 'b', 'c'] });
  await build({ packages: ['ab'] });
  expect(builds).toBe(3);
  expect(await readdir(store)).toHaveLength(3);
});

it('lets two builders race and keeps one result', async () => {
  const both = await Promise.all([build('x'), build('x')]);
  expect(builds).toBe(2);
  expect(both[0]).toEqual(both[1]);
  expect(await readdir(store)).toHaveLength(1);
});

it('replaces an entry that is damaged', async () => {
  const { dir } = await build('x');
  await truncate(join(dir, 'file'), 1);
  await build('x');
  await writeFile(join(dir, 'meta.json'), '{');
  await build('x');
  expect(builds).toBe(3);
  expect(await readFile(join(dir, 'file'), 'utf8')).toBe('content');
  expect(await readdir(store)).toHaveLength(1);
});

it('leaves nothing behind when a build fails or is cancelled', async () => {
  await expect(build('x', () => Promise.reject(new Error('no')))).rejects.toMatchObject({ code: 'internal' });
  const abort = new AbortController();
  await expect(build('x', async () => abort.abort(), abort.signal)).rejects.toMatchObject({ code: 'cancelled' });
  expect(await readdir(store)).toEqual([]);
});

it('removes what dead builders left, and nothing of living ones', async () => {
  const dead = spawnSync('true').pid;
  const start = (await readFile('/proc/self/stat', 'latin1')).split(') ')[1]?.split(' ')[19];
  const living = `.tmp-${process.pid}-${start}-00000000`;
  for (const name of [`.tmp-${dead}-1-00000000`, `.tmp-${process.pid}-1-00000000`, living, 'notes'])
    await mkdir(join(store, name, 'work'), { recursive: true });
  const { dir } = await build('x');
  expect((await readdir(store)).sort()).toEqual([living, 'notes', dir.split('/').at(-1)].sort());
});

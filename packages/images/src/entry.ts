import { mkdir, open, readdir, readFile, rename, stat, writeFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { Scope } from '@forkd/host';
import { asForkdError, ForkdError } from '@forkd/protocol';
import { z } from 'zod';
import { canonicalKey } from './canonical-key.js';
import type { BuildOptions } from './progress.js';
import { makeTemporary, removeStale, removeTemporary } from './temporary.js';

const META = 'meta.json';

export interface Entry<Info> {
  dir: string;
  info: Info;
}

export interface EntryBuilder<Info> {
  kind: string;
  /** Everything the result depends on. */
  inputs: unknown;
  /** What is remembered about the result. */
  info: z.ZodType<Info>;
  /** Fills `out`, which becomes the entry; `work` is scratch space on the same file system. */
  build(out: string, work: string): Promise<Info>;
}

/**
 * Returns the stored result of these inputs, or builds it. An entry appears in the store complete or not at all: it is
 * written under a temporary name, flushed, and renamed. Of two builders of the same thing the slower one discards its own.
 */
export async function storedEntry<Info>(options: BuildOptions, builder: EntryBuilder<Info>): Promise<Entry<Info>> {
  const { store, signal } = options;
  const dir = join(store, `${builder.kind}-${canonicalKey(builder.kind, builder.inputs).slice(0, 16)}`);
  const stored = await readEntry(dir, builder.info);
  if (stored) return stored;
  if (options.onlyStored) throw new ForkdError('host_unfit', `the ${builder.kind} image is not built yet`);

  await using scope = new Scope();
  try {
    await mkdir(store, { recursive: true });
    await removeStale(store);
    const temporary = await makeTemporary(store);
    scope.add(() => removeTemporary(temporary));
    const out = join(temporary, 'out');
    const work = join(temporary, 'work');
    await mkdir(out, { mode: 0o755 });
    await mkdir(work);

    const info = await builder.build(out, work);
    const sizes = await flushFiles(out);
    await writeFile(join(out, META), `${JSON.stringify({ inputs: builder.inputs, sizes, info }, null, 2)}\n`);
    await flush(join(out, META));
    await flush(out);
    if (signal?.aborted) throw new ForkdError('cancelled', 'cancelled');
    const entry = await publish(out, { dir, info }, join(temporary, 'damaged'), builder.info);
    await flush(store);
    return entry;
  } catch (thrown) {
    if (signal?.aborted)
      throw new ForkdError('cancelled', `cancelled while building ${builder.kind}`, { cause: thrown });
    throw asForkdError(thrown);
  }
}

/** Sizes are enough to notice a torn or trimmed entry; hashing hundreds of megabytes at each use is not worth it. */
async function readEntry<Info>(dir: string, schema: z.ZodType<Info>): Promise<Entry<Info> | undefined> {
  const Meta = z.object({ sizes: z.record(z.string(), z.number()), info: schema });
  try {
    const { sizes, info } = Meta.parse(JSON.parse(await readFile(join(dir, META), 'utf8')));
    for (const [name, size] of Object.entries(sizes)) if ((await stat(join(dir, name))).size !== size) return undefined;
    return { dir, info };
  } catch {
    return undefined;
  }
}

async function publish<Info>(
  out: string,
  built: Entry<Info>,
  damaged: string,
  schema: z.ZodType<Info>,
): Promise<Entry<Info>> {
  try {
    await rename(out, built.dir);
  } catch (thrown) {
    const taken = ['ENOTEMPTY', 'EEXIST'].includes((thrown as NodeJS.ErrnoException).code ?? '');
    if (!taken) throw thrown;
    const winner = await readEntry(built.dir, schema);
    if (winner) return winner;
    await rename(built.dir, damaged);
    await rename(out, built.dir);
  }
  return built;
}

async function flushFiles(dir: string): Promise<Record<string, number>> {
  const sizes: Record<string, number> = {};
  for (const item of await readdir(dir, { recursive: true, withFileTypes: true })) {
    const path = join(item.parentPath, item.name);
    await flush(path);
    if (item.isFile()) sizes[relative(dir, path)] = (await stat(path)).size;
  }
  return sizes;
}

async function flush(path: string): Promise<void> {
  const file = await open(path, 'r');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

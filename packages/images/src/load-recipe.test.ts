import { mkdir, mkdtemp, realpath, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { loadRecipe } from './load-recipe.js';

const SHIPPED = join(import.meta.dirname, '../../../recipes');
let dir: string;

beforeEach(async () => {
  dir = await realpath(await mkdtemp(join(tmpdir(), 'recipes-')));
  await mkdir(join(dir, 'small/root'), { recursive: true });
});
afterEach(() => rm(dir, { recursive: true }));

async function write(text: string): Promise<void> {
  await writeFile(join(dir, 'small/recipe.toml'), text);
}

it.each(['python-numpy', 'nodejs'])('loads the shipped recipe %s', async (name) => {
  expect((await loadRecipe(name, SHIPPED)).base.debian).toBe('bookworm');
});

it('makes paths absolute, by name and by path', async () => {
  await write('[base]\ndirectory = "root"\n[[files]]\npath = "/a"\nsource = "a.txt"');
  await writeFile(join(dir, 'small/a.txt'), 'a');
  const recipe = await loadRecipe('small', dir);
  expect(recipe.base.directory).toBe(join(dir, 'small/root'));
  expect(recipe.files[0]?.source).toBe(join(dir, 'small/a.txt'));
  expect(await loadRecipe(join(dir, 'small/recipe.toml'), '/nowhere')).toEqual(recipe);
});

it.each(['absent', '..', '', 'small\0', '-', 'a'.repeat(65)])(
  'says which recipes exist when asked for %j',
  async (name) => {
    await write('');
    await expect(loadRecipe(name, dir)).rejects.toMatchObject({
      code: 'recipe_not_found',
      hint: 'Recipes that exist: small.',
    });
  },
);

it.each(['../outside', '/etc/passwd', 'link', 'absent', '.'])(
  'refuses the source %j outside its folder',
  async (source) => {
    await writeFile(join(dir, 'outside'), 'secret');
    await symlink('../outside', join(dir, 'small/link'));
    await write(`[base]\ndirectory = "root"\n[[files]]\npath = "/a"\nsource = "${source}"`);
    await expect(loadRecipe('small', dir)).rejects.toMatchObject({
      code: 'recipe_invalid',
      message: expect.stringContaining('files[0].source'),
    });
  },
);

it('refuses a base directory that does not exist', async () => {
  await write('[base]\ndirectory = "absent"');
  await expect(loadRecipe('small', dir)).rejects.toMatchObject({ code: 'recipe_invalid' });
});

it('reports a path without a recipe', async () => {
  await expect(loadRecipe('./absent.toml', dir)).rejects.toMatchObject({ code: 'recipe_not_found' });
});

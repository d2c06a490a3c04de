import { readdir, readFile, realpath, stat } from 'node:fs/promises';
import { dirname, join, resolve, sep } from 'node:path';
import { ForkdError, Tag } from '@forkd/protocol';
import { parse, TomlError } from 'smol-toml';
import type { z } from 'zod';
import { Recipe } from './recipe.js';

const FILE = 'recipe.toml';
const LARGEST = 4 * 1024 * 1024;
const SHOWN_ISSUES = 5;

/** Loads `recipesDir/NAME/recipe.toml`, or the file itself when a path is given. Paths in the result are absolute. */
export async function loadRecipe(nameOrPath: string, recipesDir: string): Promise<Recipe> {
  const isPath = nameOrPath.includes('/') || nameOrPath.endsWith('.toml');
  const file = isPath ? resolve(nameOrPath) : await namedRecipe(nameOrPath, recipesDir);
  return await resolveSources(parseRecipe(await readRecipe(file), file), dirname(file), file);
}

/** Checks the text of a recipe; `file` only serves to say where an error is. */
export function parseRecipe(text: string, file = FILE): Recipe {
  let table: unknown;
  try {
    table = parse(text);
  } catch (thrown) {
    if (!(thrown instanceof TomlError)) throw thrown;
    const reason = thrown.message.split('\n')[0]?.replace(/^Invalid TOML document: /, '');
    throw invalid(`${file}:${thrown.line}:${thrown.column}: ${reason}`, thrown);
  }
  const result = Recipe.safeParse(table);
  if (result.success) return result.data;
  const issues = result.error.issues.map(explain);
  const more = issues.length > SHOWN_ISSUES ? ` (and ${issues.length - SHOWN_ISSUES} more)` : '';
  throw invalid(`${file}: ${issues.slice(0, SHOWN_ISSUES).join('; ')}${more}`);
}

async function namedRecipe(name: string, recipesDir: string): Promise<string> {
  const file = join(recipesDir, name, FILE);
  if (Tag.safeParse(name).success && (await isFile(file))) return file;
  const names: string[] = [];
  for (const entry of await readdir(recipesDir).catch(() => []))
    if (await isFile(join(recipesDir, entry, FILE))) names.push(entry);
  throw new ForkdError('recipe_not_found', `there is no recipe ${JSON.stringify(name)}`, {
    hint:
      names.length > 0 ? `Recipes that exist: ${names.sort().join(', ')}.` : `There are no recipes in ${recipesDir}.`,
    details: { names },
  });
}

async function readRecipe(file: string): Promise<string> {
  const size = await stat(file).then(
    (found) => (found.isFile() ? found.size : undefined),
    () => undefined,
  );
  if (size === undefined) throw new ForkdError('recipe_not_found', `there is no recipe file ${file}`);
  if (size > LARGEST) throw invalid(`${file} is larger than ${LARGEST} bytes`);
  return await readFile(file, 'utf8');
}

async function resolveSources(recipe: Recipe, dir: string, file: string): Promise<Recipe> {
  const { base } = recipe;
  const directory = base.directory === undefined ? undefined : resolve(dir, base.directory);
  if (directory !== undefined && !(await stat(directory).catch(() => undefined))?.isDirectory())
    throw invalid(`${file}: base.directory: ${directory} is not a directory`);
  const files = recipe.files.map(async (entry, index) => {
    if (entry.source === undefined) return entry;
    const source = await insideDir(dir, entry.source);
    if (source === undefined)
      throw invalid(`${file}: files[${index}].source: ${entry.source} is not a file in the folder of the recipe`);
    return { ...entry, source };
  });
  return { ...recipe, base: { ...base, directory }, files: await Promise.all(files) };
}

/** A recipe may come from someone else: it must not carry files of the host into an image. */
async function insideDir(dir: string, source: string): Promise<string | undefined> {
  const path = await realpath(resolve(dir, source)).catch(() => undefined);
  const inside = path?.startsWith((await realpath(dir)) + sep);
  return path !== undefined && inside && (await isFile(path)) ? path : undefined;
}

async function isFile(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined))?.isFile() === true;
}

function explain(issue: z.core.$ZodIssue): string {
  const where = issue.path.map((part) => (typeof part === 'number' ? `[${part}]` : `.${String(part)}`)).join('');
  // The reason why a key is refused is one level down.
  const message = (issue.code === 'invalid_key' && issue.issues[0]?.message) || issue.message;
  return where === '' ? message : `${where.slice(1)}: ${message}`;
}

function invalid(message: string, cause?: unknown): ForkdError {
  return new ForkdError('recipe_invalid', message, { cause });
}

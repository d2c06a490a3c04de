import { readdir } from 'node:fs/promises';
import { loadRecipe } from '@forkd/images';
import { openapi, type RecipeInfo, ROUTES, Tag } from '@forkd/protocol';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { docsPage } from '../docs-page.js';
import { serveRoute } from '../serve-route.js';

/** What can be known without a VM: the API itself, and the recipes. */
export function documentRoutes(app: FastifyInstance, recipes: string, version: string): void {
  const document = openapi(version);
  const { html, policy } = docsPage(document);
  serveRoute(app, ROUTES.openapi, () => document);
  serveRoute(app, ROUTES.docs, ({ reply }) =>
    reply.type('text/html; charset=utf-8').header('content-security-policy', policy).send(html),
  );
  serveRoute(app, ROUTES.listRecipes, async ({ request }) => {
    const names = (await readdir(recipes).catch(() => [])).filter((name) => Tag.safeParse(name).success);
    const found = await Promise.all(names.sort().map((name) => recipeInfo(name, recipes, request)));
    return found.filter((info) => info !== undefined);
  });
}

/** `undefined` for a recipe that cannot be used: it must not hide the others. */
async function recipeInfo(name: string, recipes: string, { log }: FastifyRequest): Promise<RecipeInfo | undefined> {
  try {
    const { description, memory_mib, vcpus, warmup } = await loadRecipe(name, recipes);
    return { name, description, memory_mib, vcpus, language: warmup.kernel ?? null };
  } catch (thrown) {
    log.warn(thrown, `recipe ${name} cannot be used`);
    return undefined;
  }
}

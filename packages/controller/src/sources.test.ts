import { afterAll, beforeAll, expect, it } from 'vitest';
import { close, dataDirectory, openController, plainRecipe, until, vmms } from './testing.js';

const root = dataDirectory();
let controller: Awaited<ReturnType<typeof openController>>;
beforeAll(async () => {
  controller = await openController(root);
  await controller.createSnapshot({ tag: 'plain', recipe: await plainRecipe(), recipeName: 'plain' });
});
afterAll(() => close(controller));

const zygotes = (): number => vmms(controller).length - controller.sandboxes().length;

it('zygotes that were not used for longest make room for others, and are made again when they are needed', async () => {
  const [result] = await controller.spawn({ tag: 'plain', n: 1 });
  if (!result?.ok) throw result?.error;
  for (let k = 0; k < 10; k++) {
    const tag = `branch-${k}`;
    await controller.beginBranch(result.sandbox.id, { tag, mode: 'live', owner: 'local' }).done;
    const children = await controller.spawn({ tag, n: 3 });
    expect(children.map(({ ok }) => ok)).toEqual([true, true, true]);
    for (const child of children) if (child.ok) await child.sandbox.kill();
  }
  await until(() => zygotes() <= 8, 5000);
  expect(zygotes()).toBeGreaterThan(4);
  const again = await controller.spawn({ tag: 'branch-0', n: 3 });
  expect(again.map(({ ok }) => ok)).toEqual([true, true, true]);
  await until(() => zygotes() <= 8, 5000);
});

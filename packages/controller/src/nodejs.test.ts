import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Sandbox } from './sandbox.js';
import { close, dataDirectory, openController, recipe } from './testing.js';

const root = dataDirectory();
let controller: Awaited<ReturnType<typeof openController>>;
let children: Sandbox[];

beforeAll(async () => {
  controller = await openController(root);
  await controller.createSnapshot({ tag: 'node', recipe: await recipe('nodejs'), recipeName: 'nodejs' });
  const results = await controller.spawn({ tag: 'node', n: 4 });
  children = results.flatMap((result) => (result.ok ? [result.sandbox] : []));
  expect(children.length).toBe(4);
});
afterAll(() => close(controller));

function node({ guest }: Sandbox, code: string): Promise<string | null> {
  return guest.eval({ language: 'node', code }).then(({ result, error }) => {
    if (error) throw new Error(`${error.name}: ${error.value}`);
    return result;
  });
}

it('children of a Node recipe evaluate and keep state, each for itself', async () => {
  await Promise.all(children.map((child, index) => node(child, `const mine = ${index}`)));
  expect(await Promise.all(children.map((child) => node(child, 'mine * 2')))).toEqual(['0', '2', '4', '6']);
});

const DRAWS = [
  'Math.random()',
  "require('node:crypto').randomBytes(16).toString('hex')",
  "require('node:crypto').randomUUID()",
  "Buffer.from(require('node:crypto').webcrypto.getRandomValues(new Uint8Array(16))).toString('hex')",
  "await new Promise((done) => require('node:crypto').randomBytes(16, (_, bytes) => done(bytes.toString('hex'))))",
  "require('node:crypto').createECDH('prime256v1').generateKeys('hex')",
];
const drawn = async (from: Sandbox[], code: string): Promise<number> =>
  new Set(await Promise.all(from.map((child) => node(child, code)))).size;

it.each(DRAWS)('no two children draw the same from %s', async (code) => {
  expect(await drawn(children, code)).toBe(children.length);
});

it('nor do children of a branch, and their clocks are right', async () => {
  await controller.beginBranch(children[0]!.id, { tag: 'drawn', mode: 'live', owner: 'local' }).done;
  const results = await controller.spawn({ tag: 'drawn', n: 3 });
  const siblings = [children[0]!, ...results.flatMap((result) => (result.ok ? [result.sandbox] : []))];
  for (const code of DRAWS) expect(await drawn(siblings, code), code).toBe(4);
  for (const child of siblings)
    expect(Math.abs(Number(await node(child, 'Date.now()')) - Date.now())).toBeLessThan(5_000);
});

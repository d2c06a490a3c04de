import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { openapi, ROUTES, type Route } from '@forkd/protocol';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { docsPage } from './docs-page.js';
import { TestDaemon } from './testing.js';

const recipes = mkdtempSync(`${tmpdir()}/forkd-recipes-`);
let daemon: TestDaemon;

beforeAll(async () => {
  const texts = {
    good: 'description = "works"\nmemory_mib = 256\n[base]\ndebian = "bookworm"\n[warmup]\nkernel = "python"\n',
    broken: 'memory_mib = "much"',
    nonsense: '\0[[[',
    '.hidden': '',
    'no tag': '',
  };
  for (const [name, text] of Object.entries(texts)) {
    mkdirSync(`${recipes}/${name}`);
    writeFileSync(`${recipes}/${name}/recipe.toml`, text);
  }
  mkdirSync(`${recipes}/empty`);
  writeFileSync(`${recipes}/file`, '');
  daemon = await TestDaemon.secured('--recipes', recipes);
});
afterAll(async () => {
  await daemon.stop();
  rmSync(recipes, { recursive: true });
});

it('openapi.json is the table of routes', async () => {
  const { body } = await daemon.say('GET', '/openapi.json');
  const { version } = (await daemon.say('GET', '/version')).body;
  expect(body).toEqual(JSON.parse(JSON.stringify(openapi(version))));
});

it('the page names every route, its role, parameters, fields and replies, and loads nothing', async () => {
  const { headers, body } = await daemon.say('GET', '/docs');
  expect(headers['content-type']).toBe('text/html; charset=utf-8');
  expect(headers['content-security-policy']).toMatch(/^default-src 'none'; style-src 'sha256-[\w+/]+=*';/);
  for (const { method, path } of Object.values<Route>(ROUTES))
    expect(body).toContain(`<code>${method} ${path.replace(/:([a-z]+)/g, '{$1}').replace('*', '{path}')}</code>`);
  for (const words of ['snapshot_tag', 'timeout_secs', 'Role: <code>user</code>', '204: no body', 'x-ndjson'])
    expect(body).toContain(words);
  expect(body).not.toMatch(/<script|<link|<img|https?:|undefined|\[object/);
});

it('text in the document cannot become markup', () => {
  const operation = { operationId: 'x', summary: '<img src=x>', 'x-forkd-role': '"', responses: {} };
  const { html } = docsPage({ info: { title: '<b>', version: '&' }, paths: { '/<i>': { get: operation } } });
  expect(html).not.toMatch(/<img|<b>|<i>/);
});

it('recipes are listed, and a broken one does not hide the others', async () => {
  expect((await daemon.say('GET', '/v1/recipes')).body).toEqual([
    { name: 'good', description: 'works', memory_mib: 256, vcpus: 1, language: 'python' },
  ]);
});

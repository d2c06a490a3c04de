import { readFileSync, writeFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { openapi } from './openapi.js';
import { ROUTES, type Route } from './routes.js';

const FILE = new URL('../../openapi.json', import.meta.url);

/** forkd's own 22: clients written for it must find every one of them. */
const FORKD = `
GET /healthz
GET /version
GET /metrics
GET /v1/snapshots
POST /v1/snapshots
DELETE /v1/snapshots/:tag
GET /v1/snapshots/:tag/info
POST /v1/snapshots/:tag/compact
GET /v1/sandboxes
POST /v1/sandboxes
GET /v1/sandboxes/:id
DELETE /v1/sandboxes/:id
POST /v1/sandboxes/:id/ping
POST /v1/sandboxes/:id/exec
POST /v1/sandboxes/:id/eval
POST /v1/sandboxes/:id/branch
GET /v1/workspaces
POST /v1/workspaces
GET /v1/workspaces/:name
DELETE /v1/workspaces/:name
POST /v1/workspaces/:name/suspend
POST /v1/workspaces/:name/resume
`;

describe('the API', () => {
  it('has all routes of forkd', () => {
    const ours = Object.values<Route>(ROUTES).map(({ method, path }) => `${method} ${path}`);
    expect(ours).toEqual(expect.arrayContaining(FORKD.trim().split('\n')));
  });

  it('is what openapi.json says (UPDATE=1 writes it)', () => {
    const document = `${JSON.stringify(openapi('1'), null, 2)}\n`;
    if (process.env.UPDATE) writeFileSync(FILE, document);
    expect(readFileSync(FILE, 'utf8')).toBe(document);
  });
});

describe('hostile requests', () => {
  const { body: spawn } = ROUTES.spawn;
  const { params: byTag } = ROUTES.getSnapshot;
  const { params: byId } = ROUTES.getSandbox;

  it.each(['..', '../x', 'a/b', '', 'a b', 'x'.repeat(65), 'a\0', 'é', '.hidden', '%2e%2e'])(
    'the tag %j is refused',
    (tag) => {
      expect(byTag.safeParse({ tag }).success).toBe(false);
      expect(spawn.safeParse({ snapshot_tag: tag }).success).toBe(false);
    },
  );

  it.each(['', 'sb-', 'sb-../../etc', 'sb-UPPERCASEUPPERCASE00', 'sandbox', 'sb-0123456789012345678'])(
    'the id %j is refused',
    (id) => {
      expect(byId.safeParse({ id }).success).toBe(false);
    },
  );

  it.each([
    { n: 0 },
    { n: 1001 },
    { n: 1.5 },
    { n: '3' },
    { n: -1 },
    { n: Number.MAX_VALUE },
    { unknown: 1 },
    { env: { 'BAD-NAME': 'x' } },
    { env: { A: 'a\0b' } },
    { metadata: { 'no spaces': 'x' } },
    { ttl_secs: 0 },
    { memory_limit_mib: -5 },
  ])('spawning with %j is refused', (fields) => {
    expect(spawn.safeParse({ snapshot_tag: 'base', ...fields }).success).toBe(false);
  });

  it('forkd clients may say everything they used to say', () => {
    const legacy = { per_child_netns: true, prewarm: true, live_fork: true, hugepages: true, memory_limit_mib: null };
    expect(spawn.parse({ snapshot_tag: 'base', ...legacy })).toMatchObject({ n: 1, env: {}, metadata: {} });
  });

  it('a snapshot comes from a recipe, or from a kernel and a root disk, never from half of it', () => {
    const { body } = ROUTES.createSnapshot;
    expect(body.safeParse({ tag: 'a', recipe: 'python-numpy' }).success).toBe(true);
    expect(body.safeParse({ tag: 'a', kernel: '/k', rootfs: '/r' }).success).toBe(true);
    for (const half of [
      {},
      { kernel: '/k' },
      { rootfs: '/r' },
      { kernel: 'k', rootfs: 'r' },
      { recipe: 'x', kernel: '/k', rootfs: '/r' },
    ])
      expect(body.safeParse({ tag: 'a', ...half }).success).toBe(false);
    expect(body.safeParse({ tag: 'a', recipe: 'x', boot_wait_secs: 61 }).success).toBe(false);
  });
});

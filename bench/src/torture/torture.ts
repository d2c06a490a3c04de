import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { leaks, NO_LEAKS, SqliteStore } from '@forkd/controller';
import { RECIPES } from '../session.js';
import { audit, type Findings } from './audit.js';
import { DaemonProcess } from './daemon-process.js';
import { call, Load, Promised } from './load.js';

/**
 * Kills the daemon, its helper or both N times at random moments while callers create, spawn, exec, branch, fork, promote,
 * roll back, suspend, resume and delete, starts it again, and looks for whatever was lost or left. The last line is the count of each.
 */
const { values } = parseArgs({
  options: { n: { type: 'string', default: '50' }, seconds: { type: 'string', default: '8' } },
});
const kills = Number(values.n);
const data = mkdtempSync(`${tmpdir()}/forkd-torture-`);
const recipes = `${data}/recipes`;
const found: Findings = { orphans: [], unusable_tags: [], lost_sandboxes: [], leaked_files: [], lost_work: [] };

prepare();
const daemon = new DaemonProcess(data, recipes);
const promised = new Promised();
await daemon.start();
expect(await call(daemon, 'POST', '/v1/snapshots', { tag: 'base', recipe: 'plain' }), 201);
for (let round = 1; round <= kills; round++) await killOnce(round);
await finish();
const clean = Object.values(found).every((list) => list.length === 0);
if (clean) rmSync(data, { recursive: true, force: true });
else console.error(`kept for inspection: ${data}`);
const counts = Object.fromEntries(Object.entries(found).map(([name, list]) => [name, list.length]));
console.log(JSON.stringify({ kills, ...counts }));
process.exitCode = clean ? 0 : 1;

async function killOnce(round: number): Promise<void> {
  const load = new Load(daemon, promised, round);
  const running = load.run();
  await new Promise((done) => setTimeout(done, Math.random() ** 2 * Number(values.seconds) * 1000));
  const dice = Math.random();
  const victims =
    dice < 0.7 ? (['daemon'] as const) : dice < 0.85 ? (['helper'] as const) : (['helper', 'daemon'] as const);
  load.stop();
  await daemon.kill([...victims]);
  await running;
  const since = performance.now();
  await daemon.start();
  const restartMs = Math.round(performance.now() - since);
  const findings = await audit(daemon, data, promised);
  for (const [kind, list] of Object.entries(findings) as [keyof Findings, string[]][]) {
    found[kind].push(...list);
    for (const one of list) console.error(`  ${kind}: ${one}`);
  }
  const done = Object.entries(load.done).map(([what, count]) => `${count} ${what}`);
  const tags = 1 + promised.tags.size + promised.branches.size;
  console.error(
    `${round}/${kills} killed ${victims.join(' and ')}: ${done.join(', ')}; ` +
      `up again in ${restartMs} ms with ${promised.sandboxes.size} sandboxes, ${tags} tags`,
  );
}

/** Everything is taken down in order; then nothing at all may be left. */
async function finish(): Promise<void> {
  for (const name of promised.workspaces.keys()) expect(await call(daemon, 'DELETE', `/v1/workspaces/${name}`), 204);
  for (const id of promised.sandboxes) expect(await call(daemon, 'DELETE', `/v1/sandboxes/${id}`), 204);
  for (const tag of [...promised.branches, ...promised.tags, 'base'])
    expect(await call(daemon, 'DELETE', `/v1/snapshots/${tag}?force=true`), 204);
  if ((await daemon.stop()) !== 0) found.orphans.push('the daemon did not end in order');
  const left = leaks(data);
  found.orphans.push(...left.processes.map(String));
  found.leaked_files.push(...left.sockets, ...left.run, ...left.mounts);
  const store = new SqliteStore(`${data}/state.db`);
  for (const { id, state } of store.sandboxes({ states: ['starting', 'running', 'paused', 'stopping'] }))
    found.lost_sandboxes.push(`${id} is ${state} in the database`);
  for (const { tag } of store.snapshots()) found.unusable_tags.push(`${tag} is in the database`);
  store.close();
  if (JSON.stringify(left) !== JSON.stringify(NO_LEAKS)) console.error(left);
}

/** A recipe whose guest is up in a few seconds, on top of the images that are there. */
function prepare(): void {
  const images = resolve(process.env.FORKD_DATA ?? '.forkd', 'images');
  mkdirSync(images, { recursive: true });
  symlinkSync(images, `${data}/images`);
  mkdirSync(`${recipes}/plain`, { recursive: true });
  const text = readFileSync(`${RECIPES}/python-numpy/recipe.toml`, 'utf8');
  const plain = text
    .slice(0, text.indexOf('[warmup]'))
    .replace(/memory_mib = \d+/, 'memory_mib = 128')
    .replace(/disk_mib = \d+/, 'disk_mib = 64');
  writeFileSync(`${recipes}/plain/recipe.toml`, plain);
}

function expect({ status, json }: { status: number; json: unknown }, wanted: number): void {
  if (status !== wanted) throw new Error(`expected ${wanted}, got ${status}: ${JSON.stringify(json)}`);
}

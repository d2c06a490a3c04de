import { readFileSync, rmSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { inParallel, LOCAL_OWNER, type Sandbox, type SandboxRecord, SqliteStore } from '@forkd/controller';
import { ForkdError, newSandboxId, type SandboxInfo } from '@forkd/protocol';
import { endProgress, showProgress } from './progress-line.js';
import { RestClient } from './rest-client.js';
import { resultsDirectory } from './results.js';
import { inSession, RECIPES, type Session } from './session.js';
import { percentile, rounded } from './statistics.js';
import { DaemonProcess } from './torture/daemon-process.js';
import { KILL_WIDTH, killAll, sharedData, takeDown } from './with-daemon.js';

const TAG = 'rest';
/** The same in every language, and next to nothing to compute. */
const CODE = '1 + 1';
const WARM_UPS = 100;
const ROUNDS = 300;
const SPAWN_ROUNDS = 5;
const IN_FLIGHT = [1, 16, 64] as const;
const THROUGHPUT_ROUNDS = 3;
const THROUGHPUT_MS = 2_000;
const RECORDS = 1000;
const LISTINGS = 50;
/** After which a daemon that has spawned is idle again. */
const IDLE_MS = 3_000;

/** What is measured, and the same in this process without the daemon, on a data directory of its own. */
const data = sharedData('rest-');
process.env.FORKD_DATA = data;
try {
  await inSession(measure);
} finally {
  rmSync(data, { recursive: true, force: true });
}

async function measure(session: Session): Promise<void> {
  const { args, recipe, name, controller } = session;
  const language = recipe.warmup.kernel;
  if (!language) throw new ForkdError('recipe_invalid', `recipe ${name} warms no language kernel to evaluate in`);
  fillDatabase();
  const daemon = new DaemonProcess(data, RECIPES);
  await daemon.start();
  using rest = new RestClient(daemon.url);
  try {
    showProgress({ step: 'list', detail: `${RECORDS} records` });
    const listing = await listings(rest);
    showProgress({ step: 'snapshot', detail: name });
    await rest.call('POST', '/v1/snapshots', { tag: TAG, recipe: name });

    showProgress({ step: 'latency', detail: `${ROUNDS} calls of each kind` });
    const [direct] = await spawnHere(session, 1);
    const times = await latencies(session, direct!, rest, await spawnThere(rest, 3), { language, code: CODE });
    await direct!.kill();
    await killAll(rest);

    const spawns = await spawnTimes(session, rest, args.n);
    showProgress({ step: 'idle', detail: `${args.n} sandboxes` });
    const ids = await spawnThere(rest, args.n);
    await new Promise((done) => setTimeout(done, IDLE_MS));
    const rss = residentMib(daemon.pid);
    const rates = await throughput(session, rest, ids, { language, code: CODE });
    await killAll(rest);
    endProgress();

    const summary = {
      agent_rtt_ms: quantiles(times.agent),
      ping_ms: quantiles(times.ping),
      eval_ms: quantiles(times.eval),
      exec_ms: quantiles(times.exec),
      rps: Object.fromEntries(IN_FLIGHT.map((width) => [width, rounded(median(rates[width]), 0)])),
      daemon_rss_mb: rounded(rss),
      list_1000_ms: listing && rounded(median(listing), 2),
      [`spawn_${args.n}_rest_ms`]: rounded(median(spawns.rest)),
      [`spawn_${args.n}_inprocess_ms`]: rounded(median(spawns.here)),
    };
    await mkdir(resultsDirectory(), { recursive: true });
    const raw = { summary, engine: controller.engine.kind, recipe: name, times, rates, spawns, listing };
    await writeFile(join(resultsDirectory(), `rest-${name}-${Date.now()}.json`), JSON.stringify(raw));
    console.log(JSON.stringify(summary));
  } finally {
    await takeDown(rest, daemon, data);
  }
}

/** Sandboxes that have ended just now, as a busy daemon would remember them. */
function fillDatabase(): void {
  const now = Math.floor(Date.now() / 1000);
  const record = (index: number): SandboxRecord => ({
    id: newSandboxId(),
    place: newSandboxId(),
    snapshot_tag: TAG,
    owner: LOCAL_OWNER,
    state: 'exited',
    pid: 1000 + index,
    start_time: index,
    created_at: now - index,
    expires_at: null,
    ended_at: now,
    exit_reason: 'killed',
    request_key: null,
    promoted_from: null,
    budget: null,
    guest_branch: 0,
    policy: { preset: 'none', allow: [], deny: [] },
    env: {},
    branch_count: 0,
    last_branch: null,
    metadata: { job: `${index}` },
    memory_limit_mib: null,
    limits: {},
    vcpus: 1,
    memory_mib: 256,
    disk_mib: 64,
  });
  const store = new SqliteStore(`${data}/state.db`);
  store.addSandboxes(Array.from({ length: RECORDS }, (_, index) => record(index)));
  store.close();
}

/** `null` where the daemon does not remember them. */
async function listings(rest: RestClient): Promise<number[] | null> {
  const times: number[] = [];
  for (let round = -5; round < LISTINGS; round++) {
    const since = performance.now();
    const found = await rest.call<unknown[]>('GET', `/v1/sandboxes?state=exited&limit=${RECORDS}`);
    if (found.length !== RECORDS) return null;
    if (round >= 0) times.push(performance.now() - since);
  }
  return times;
}

interface Line {
  language: 'python' | 'node';
  code: string;
}

/**
 * One of each in turn, so that whatever else the host does meets all of them; each in a sandbox of its own, because what one
 * kind leaves in the caches of an emulator would be charged to the next.
 */
async function latencies({ signal }: Session, direct: Sandbox, rest: RestClient, ids: string[], line: Line) {
  const [evaluated, pinged, executed] = ids.map((id) => `/v1/sandboxes/${id}`);
  const calls = {
    agent: () => direct.guest.eval(line),
    eval: () => rest.call('POST', `${evaluated}/eval`, line),
    ping: () => rest.call('POST', `${pinged}/ping`),
    exec: () => rest.call('POST', `${executed}/exec`, { args: ['true'] }),
  };
  const times = { agent: [] as number[], eval: [] as number[], ping: [] as number[], exec: [] as number[] };
  for (let round = -WARM_UPS; round < ROUNDS; round++)
    for (const [kind, call] of Object.entries(calls) as [keyof typeof calls, () => Promise<unknown>][]) {
      signal.throwIfAborted();
      const since = performance.now();
      await call();
      if (round >= 0) times[kind].push(performance.now() - since);
    }
  return times;
}

/** Through the daemon and in this process in turn, with the other first every second time. */
async function spawnTimes(session: Session, rest: RestClient, n: number) {
  const times = { rest: [] as number[], here: [] as number[] };
  for (let round = -1; round < SPAWN_ROUNDS; round++) {
    const count = round < 0 ? Math.min(n, 5) : n;
    const order = round % 2 === 0 ? (['rest', 'here'] as const) : (['here', 'rest'] as const);
    for (const where of order) {
      session.signal.throwIfAborted();
      showProgress({ step: 'spawn', detail: `${count}, ${where === 'rest' ? 'through the daemon' : 'in process'}` });
      const since = performance.now();
      const here = where === 'here' ? await spawnHere(session, count) : [];
      if (where === 'rest') await spawnThere(rest, count);
      if (round >= 0) times[where].push(performance.now() - since);
      await inParallel(here.length, KILL_WIDTH, (index) => here[index]!.kill());
      if (where === 'rest') await killAll(rest);
    }
  }
  return times;
}

async function throughput({ signal }: Session, rest: RestClient, ids: string[], line: Line) {
  const rates: Record<number, number[]> = { 1: [], 16: [], 64: [] };
  let next = 0;
  for (let round = 0; round < THROUGHPUT_ROUNDS; round++)
    for (const width of IN_FLIGHT) {
      signal.throwIfAborted();
      showProgress({ step: 'rate', detail: `${width} in flight` });
      let done = 0;
      const since = performance.now();
      await inParallel(width, width, async () => {
        for (; performance.now() - since < THROUGHPUT_MS; done++)
          await rest.call('POST', `/v1/sandboxes/${ids[next++ % ids.length]}/eval`, line);
      });
      rates[width]!.push((done * 1000) / (performance.now() - since));
    }
  return rates;
}

async function spawnHere({ controller, signal }: Session, n: number): Promise<Sandbox[]> {
  const results = await controller.spawn({ tag: TAG, n, signal });
  return results.map((result) => {
    if (!result.ok) throw result.error;
    return result.sandbox;
  });
}

async function spawnThere(rest: RestClient, n: number): Promise<string[]> {
  const infos = await rest.call<SandboxInfo[]>('POST', '/v1/sandboxes', { snapshot_tag: TAG, n });
  return infos.map(({ id }) => id);
}

function residentMib(pid: number): number {
  return Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024;
}

function quantiles(times: number[]): { p50: number; p99: number } {
  return { p50: rounded(percentile(times, 0.5), 2), p99: rounded(percentile(times, 0.99), 2) };
}

function median(values: number[] = []): number {
  return percentile(values, 0.5);
}

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { nativeBinary } from '@forkd/host';
import { build } from 'rolldown';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { TestDaemon, temporaryData } from './testing.js';

/** Which version a host has is decided where it boots, so this one is a guest: its kernel has nothing but version 2. */
const REPOSITORY = fileURLToPath(new URL('../../..', import.meta.url));
const TRY_LIMITS = `${REPOSITORY}/packages/controller/dist/limits/try-limits.fixture.js`;
/** On a disk: the root of a guest is an overlay, which has no limits. */
const OWN = '/mnt/disk/own';
const GROUPS = '/sys/fs/cgroup';

/** Who starts VMs comes to be where systemd would have put it. */
const AS_SERVICE = `
  echo max > forkd/memory.max
  mkdir -p system.slice/forkd.service
  echo $PPID > system.slice/forkd.service/cgroup.procs`;

/** A group that has processes hands nothing on. */
const INTRUDE = `
  rmdir forkd/*-* forkd; mkdir forkd
  sleep 300 > /dev/null 2>&1 &
  echo $! > forkd/cgroup.procs`;

/** In a group which looks like the root from inside, beside somebody else; neither CPU nor I/O may be limited. */
const CONTAINED = `
  mkdir -p outer/box; for group in . outer; do echo "+memory +pids" > $group/cgroup.subtree_control; done
  sleep 300 > /dev/null 2>&1 &
  echo $! > outer/box/cgroup.procs; echo $$ > outer/box/cgroup.procs
  cd /
  exec unshare --cgroup --mount sh -ec 'umount ${GROUPS}; mount -t cgroup2 none ${GROUPS}; exec "$0" "$@"'`;

let daemon: TestDaemon;
let host: string;

beforeAll(async () => {
  const root = temporaryData();
  const recipe = readFileSync(`${REPOSITORY}/recipes/nodejs/recipe.toml`, 'utf8');
  mkdirSync(`${root}/recipes/host`, { recursive: true });
  writeFileSync(`${root}/recipes/host/recipe.toml`, recipe.slice(0, recipe.indexOf('[warmup]')));
  daemon = await TestDaemon.start(['--recipes', `${root}/recipes`], root);
  expect((await daemon.say('POST', '/v1/snapshots', { tag: 'host', recipe: 'host' })).status).toBe(201);
  host = await daemon.spawn('host');
  const { output } = await build({ input: TRY_LIMITS, platform: 'node', write: false });
  await put('/opt/try-limits.mjs', output[0].code);
  await put('/opt/forkd-host-helper', readFileSync(nativeBinary('forkd-host-helper')));
  await daemon.shell(
    host,
    `chmod +x /opt/forkd-host-helper; mkdir /mnt/disk; mount /dev/vdb /mnt/disk; mkdir ${OWN}
     dd if=/dev/zero of=/mnt/disk/swap bs=1M count=96; mkswap /mnt/disk/swap; swapon /mnt/disk/swap`,
  );
});
afterAll(() => daemon.stop());

async function put(path: string, body: string | Buffer): Promise<void> {
  const headers = { 'content-type': 'application/octet-stream' };
  const url = `${daemon.url}/v1/sandboxes/${host}/files?path=${path}`;
  expect((await fetch(url, { method: 'PUT', headers, body: body as string })).status).toBe(204);
}

interface Trial {
  before?: string;
  limits: Record<string, number>;
  command: string;
}

type Outcome = Record<'refused' | 'output', string> & {
  exit: { code: number | null; signal: number | null; why?: string };
  ms: number;
  files: Record<string, string>;
  left: string[];
};

/** What comes of programs that are run under limits; those of one round at the same time. */
async function outcomes(start: string, ...rounds: Trial[][]): Promise<Outcome[]> {
  const script = `set -e; cd ${GROUPS}; ${start} node /opt/try-limits.mjs ${OWN}`;
  const { hierarchies, outcomes } = JSON.parse(await daemon.shell(host, script, JSON.stringify(rounds)));
  expect(hierarchies).toMatchObject([{ version: 2, path: GROUPS }]);
  return outcomes.flat();
}

const uses = (mib: number): string => `exec perl -e '$taken = "x" x (${mib} << 20)'`;
const spinsUntil = (file: string): string => `until [ -e ${OWN}/${file} ]; do :; done`;

/** Of one CPU. */
const share = ({ files, ms }: Outcome): number => Number(/usage_usec (\d+)/.exec(files['cpu.stat']!)![1]) / (1000 * ms);

const KILLED = { code: null, signal: 9 };
const ENDED = { code: 0, signal: null };
const refused = (because: RegExp): unknown => ({ refused: expect.stringMatching(because), left: [] });

it('every limit is in its file, and holds', async () => {
  const some = { memory_limit_mib: 32, cpu_limit: 0.5, cpu_weight: 200, pids_limit: 16 };
  const io = { write_bps_limit: 1 << 20, read_iops_limit: 1000 };
  const seen = await outcomes(
    '',
    [{ limits: { ...some, ...io }, command: uses(8) }],
    [{ limits: { memory_limit_mib: 32 }, command: uses(48) }],
    [{ limits: { pids_limit: 4 }, command: 'for i in 1 2 3 4 5; do sleep 0.1 & done; wait' }],
    [{ limits: io, command: `dd if=/dev/zero of=${OWN}/written bs=64k count=32 oflag=direct` }],
    [
      { limits: { cpu_limit: 0.2 }, command: spinsUntil('enough') },
      { limits: { pids_limit: 9 }, command: `sleep 2; touch ${OWN}/enough` },
    ],
    [
      { limits: { cpu_weight: 10 }, command: spinsUntil('all') },
      { limits: { cpu_weight: 1000 }, command: spinsUntil('all') },
      { limits: { pids_limit: 9 }, command: `sleep 3; touch ${OWN}/all` },
    ],
    [{ before: 'echo 24M > forkd/memory.max', limits: { memory_limit_mib: 64 }, command: uses(40) }],
    [{ before: AS_SERVICE, limits: some, command: uses(48) }],
    [{ before: INTRUDE, limits: some, command: 'true' }],
  );
  const [plain, tooMuch, forks, writes, throttled, , light, heavy, , crowded, service, intruded] = seen;
  expect(plain).toMatchObject({ exit: ENDED, left: [] });
  expect(plain!.exit.why).toBeUndefined();
  expect(plain!.files).toMatchObject({
    'memory.max': String(32 << 20),
    'memory.swap.max': '0',
    'cpu.max': '50000 100000',
    'cpu.weight': '200',
    'pids.max': '16',
    'io.max': expect.stringMatching(/^\d+:\d+ rbps=max wbps=1048576 riops=1000 wiops=max$/),
  });
  // There is swap enough for all of it.
  expect(tooMuch).toMatchObject({ exit: { ...KILLED, why: 'out of memory: limit 32 MiB' }, left: [] });
  expect(forks).toMatchObject({ output: expect.stringMatching(/cannot fork/i), files: { 'pids.events': 'max 1' } });
  expect(forks!.left).toEqual([]);
  expect(writes!.exit).toMatchObject(ENDED);
  expect(writes!.ms).toBeGreaterThan(1500);
  expect(share(throttled!)).toBeLessThan(0.3);
  expect(share(heavy!)).toBeGreaterThan(2 * share(light!));
  // The group of all sandboxes was too small: it has not reached its own limit.
  expect(crowded!.exit).toMatchObject(KILLED);
  expect(crowded!.exit.why).toBeUndefined();
  expect(service).toMatchObject({ exit: { ...KILLED, why: 'out of memory: limit 32 MiB' }, left: [] });
  expect(intruded).toEqual(refused(/^host_unfit: EBUSY/));
});

it('in a container the root hands on what it was given, and what it was not is refused', async () => {
  const given = { memory_limit_mib: 16, pids_limit: 16 };
  const readOnly = `mount -o remount,bind,ro ${GROUPS}`;
  const [tooMuch, little, cpu, sealed] = await outcomes(
    CONTAINED,
    [{ limits: given, command: uses(32) }],
    [{ limits: given, command: uses(4) }],
    [{ limits: { ...given, cpu_limit: 1 }, command: 'true' }],
    [{ before: readOnly, limits: given, command: 'true' }],
  );
  expect(tooMuch).toMatchObject({ exit: { ...KILLED, why: 'out of memory: limit 16 MiB' }, left: [] });
  expect(little).toMatchObject({ exit: ENDED, left: [] });
  expect(cpu).toEqual(refused(/^host_unfit: no hierarchy has the controller of cpu/));
  expect(sealed).toEqual(refused(/^host_unfit: EROFS/));
  // Who was in the way has moved aside.
  expect(await daemon.shell(host, `cat ${GROUPS}/outer/box/forkd-rest/cgroup.procs`)).toMatch(/\d/);
});

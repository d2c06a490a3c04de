import { execFileSync } from 'node:child_process';
import { constants, copyFileSync, readFileSync, rmSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { crc32 } from 'node:zlib';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { plainRecipes, TestDaemon, temporaryData } from './testing.js';

const WORKLOAD = readFileSync(fileURLToPath(new URL('../src/checksum-workload.py', import.meta.url)), 'utf8');

/** `make torture-branch` asks for more. */
const CYCLES = Number(process.env.CYCLES ?? 4);
const CYCLE_MS = 20_000;

/** As the workload writes them: number, number of the other writer, checksum. */
const RECORD_BYTES = 20;

const MODES = ['live', 'diff', 'live', 'full'];

let daemon: TestDaemon;

beforeAll(async () => {
  const root = temporaryData();
  daemon = await TestDaemon.start(['--recipes', plainRecipes(root)], root);
});

afterAll(() => daemon.stop());

it.each([1, 2])(
  'what a guest with %i CPUs writes is of one instant in every branch',
  { timeout: CYCLES * CYCLE_MS + 60_000 },
  async (vcpus) => {
    const tag = `cpus-${vcpus}`;
    expect((await daemon.say('POST', '/v1/snapshots', { tag, recipe: 'plain', vcpus })).status).toBe(201);
    let source = await daemon.spawn(tag);
    await daemon.shell(source, 'cat > /root/work.py', WORKLOAD);
    await daemon.shell(source, 'setsid python3 /root/work.py > /dev/null 2> /root/errors &');
    await daemon.shell(
      source,
      'until [ -e /dev/shm/memory.status ] && [ -e /dev/shm/files.status ]; do sleep 0.1; done',
    );
    for (let cycle = 0; cycle < CYCLES; cycle++) {
      if (cycle > 0 && cycle % 20 === 0)
        console.log(`${vcpus} CPUs: ${cycle} of ${CYCLES} cycles, nothing wrong so far`);
      await sleep(Math.random() * 300);
      const before = await ask(source, 'status');
      const branch = { tag: `cycle-${cycle}`, mode: MODES[cycle % MODES.length] };
      const taken = await daemon.say('POST', `/v1/sandboxes/${source}/branch`, branch);
      expect(taken.status, JSON.stringify(taken.body)).toBe(201);
      checkDisk(branch.tag, before.files.synced);
      const child = await daemon.spawn(branch.tag);
      for (const id of [child, source]) {
        const { memory, files } = await ask(id, 'report');
        expect([cycle, branch.mode, memory.wrong, files.wrong]).toEqual([cycle, branch.mode, [], []]);
        expect(memory.number).toBeGreaterThan(before.memory.number);
        expect(files.number).toBeGreaterThan(before.files.number);
      }
      // Every third is branched further itself.
      const [stays, goes] = cycle % 3 === 2 ? [child, source] : [source, child];
      source = stays;
      expect((await daemon.say('DELETE', `/v1/sandboxes/${goes}`)).status).toBe(204);
      if (stays !== child) expect((await daemon.say('DELETE', `/v1/snapshots/${branch.tag}`)).status).toBe(204);
    }
    await daemon.killAll();
    expect((await daemon.say('DELETE', `/v1/snapshots/${tag}?cascade=true`)).status).toBe(204);
  },
);

interface Counters {
  memory: { number: number; wrong: string[] };
  files: { number: number; synced: number; wrong: string[] };
}

/** How far both are; after a check also what they found wrong. Without Python, which takes seconds to start beside them. */
async function ask(id: string, what: 'status' | 'report'): Promise<Counters> {
  const check = 'rm -f *.report; kill -USR1 $(cat memory.pid) $(cat files.pid)';
  const wait = 'until [ -e memory.report ] && [ -e files.report ]; do sleep 0.02; done';
  const print = `echo "{\\"memory\\": $(cat memory.${what}), \\"files\\": $(cat files.${what})}"`;
  const steps = ['cat /root/errors >&2', 'cd /dev/shm', ...(what === 'report' ? [check, wait] : []), print];
  return JSON.parse(await daemon.shell(id, steps.join('; ')));
}

/** As after a power cut at the instant of the branch: with its journal replayed it is clean, and has whatever was synced. */
function checkDisk(tag: string, synced: number): void {
  const copy = `${daemon.root}/${tag}.img`;
  copyFileSync(`${daemon.root}/snapshots/${tag}/upper.img`, copy, constants.COPYFILE_FICLONE);
  try {
    // 1: something was to do, the journal namely.
    run('e2fsck', ['-p', '-E', 'journal_only', copy], [0, 1]);
    run('e2fsck', ['-fn', copy], [0]);
    const numbers = ['log.old', 'log'].flatMap((name) =>
      records(run('debugfs', ['-R', `cat /upper/root/work/${name}`, copy], [0])),
    );
    expect(numbers).toEqual(numbers.map((_, index) => numbers[0]! + index));
    expect(numbers.at(-1)).toBeGreaterThanOrEqual(synced);
  } finally {
    rmSync(copy);
  }
}

/** The numbers of those that reached the disk; the last may have done so in part. */
function records(log: Buffer): number[] {
  const found: number[] = [];
  for (let at = 0; at + RECORD_BYTES <= log.length; at += RECORD_BYTES) {
    const whole = crc32(log.subarray(at, at + 16)) === log.readUInt32LE(at + 16);
    if (!whole) break;
    found.push(Number(log.readBigUInt64LE(at)));
  }
  return found;
}

function run(program: string, args: string[], wanted: number[]): Buffer {
  try {
    return execFileSync(program, args, { stdio: ['ignore', 'pipe', 'pipe'], maxBuffer: 64 << 20 });
  } catch (thrown) {
    const { status, stdout, stderr } = thrown as { status: number; stdout: Buffer; stderr: Buffer };
    expect(wanted, `${program} ${args.join(' ')}: ${stdout}${stderr}`).toContain(status);
    return stdout;
  }
}

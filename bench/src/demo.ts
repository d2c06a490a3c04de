import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Sandbox } from '@forkd/controller';
import { ForkdError } from '@forkd/protocol';
import { type FanOut, fanOut } from './fan-out.js';
import { memoryUse } from './process-memory.js';
import { endProgress } from './progress-line.js';
import { resultsDirectory } from './results.js';
import { inSession, type Warmed, withParent } from './session.js';
import { mean, percentile } from './statistics.js';
import { ms, printTable } from './table.js';
import { timelineSvg } from './timeline-svg.js';

const RANDOM = { python: "__import__('random').random()", node: 'Math.random()' };
const SHARED_PATH = '/root/who-am-i';

await inSession(async (session) => {
  const { name, signal } = session;
  const { n, width } = session.args;
  console.log(`forkd demo: one parent (${name}), ${n} children\n`);
  await withParent(session, async (warmed) => {
    endProgress();
    const fan = await fanOut(session, warmed, n, width);
    const memory = fan.sandboxes.map(({ vm }) => memoryUse(vm.pid));
    const { sandboxes } = fan;
    const [isolated, randoms] = [
      await isolation(sandboxes, signal),
      await identity(sandboxes, warmed.language, signal),
    ];
    const picture = await keep(fan, name, n);
    const { machine } = await session.controller.snapshot(warmed.tag);
    printTable('What happened', [
      ['engine', `qemu, ${machine.accel}, ${machine.vcpus} vCPU, ${machine.memoryMib} MiB per VM`],
      ['parent: boot and warm-up', ms(warmed.warmMs)],
      [`${n} children ready`, ms(fan.spawnMs)],
      [`${n}th answer to ${warmed.code}`, ms(fan.wallMs)],
      ['per child, start to ready', spread(fan.samples.map((s) => s.ready - s.started))],
      ['per child, first eval', spread(fan.samples.map((s) => s.answered - s.ready))],
    ]);
    printTable('Memory, mean per child with all alive', [
      ['proportional (PSS)', `${mean(memory.map((m) => m.pssMib)).toFixed(1)} MiB`],
      ['guest RAM written by the child', `${mean(memory.map((m) => m.guestPrivateMib)).toFixed(1)} MiB`],
      ['emulator, private', `${mean(memory.map((m) => m.emulatorPrivateMib)).toFixed(1)} MiB`],
      ['guest RAM shared with the others', `${mean(memory.map((m) => m.guestSharedMib)).toFixed(1)} MiB`],
    ]);
    printTable('Proof', [
      ['isolation', `${isolated} of ${n} read back their own value from ${SHARED_PATH}`],
      ['identity', `${randoms} different random numbers from ${n} inherited generators`],
    ]);
    console.log(`\nTimeline: ${picture}`);
    if (fan.failures[0])
      throw new ForkdError(
        'vmm_exited',
        `${fan.failures.length} of ${n} children failed; first: ${fan.failures[0].message}`,
      );
    if (isolated !== n || randoms !== n) throw new ForkdError('internal', 'children are not apart from each other');
  });
  console.log('All VMs, sockets and directories of this run are gone.');
});

/** Every child writes its id to the same path; only when all have written does each read it back. */
async function isolation(sandboxes: Sandbox[], signal: AbortSignal): Promise<number> {
  await Promise.all(sandboxes.map(({ id, guest }) => guest.files.write(SHARED_PATH, id, { signal })));
  const read = await Promise.all(sandboxes.map(({ guest }) => guest.files.read(SHARED_PATH, { signal })));
  return read.filter((content, index) => content.toString() === sandboxes[index]?.id).length;
}

async function identity(sandboxes: Sandbox[], language: Warmed['language'], signal: AbortSignal): Promise<number> {
  const values = sandboxes.map(({ guest }) => guest.eval({ language, code: RANDOM[language], signal }));
  return new Set((await Promise.all(values)).map(({ result }) => result)).size;
}

async function keep(fan: FanOut, name: string, n: number): Promise<string> {
  const directory = resultsDirectory();
  await mkdir(directory, { recursive: true });
  const picture = join(directory, `demo-${name}-${n}.svg`);
  await writeFile(picture, timelineSvg(`${n} children of ${name}, answered in ${ms(fan.wallMs)}`, fan.samples));
  await writeFile(join(directory, `demo-${name}-${n}.json`), JSON.stringify(fan.samples, null, 1));
  return picture;
}

function spread(samples: number[]): string {
  return [0.5, 0.9, 0.99].map((p) => `p${p * 100} ${ms(percentile(samples, p))}`).join(', ');
}

import { mkdir, rm } from 'node:fs/promises';
import { inParallel, type Source } from '@forkd/controller';
import type { Vm } from '@forkd/engine';
import { connectGuest } from '@forkd/guest';
import { memoryUse } from './process-memory.js';
import type { Session, Warmed } from './session.js';
import { mean } from './statistics.js';

export interface Floor {
  wallMs: number;
  emulatorPrivateMib: number;
}

/**
 * The least a fan-out can cost: a loop that starts VMMs from a source and evaluates. No identity, no bookkeeping; the disks are cloned
 * before the clock runs.
 */
export async function floor(
  session: Session,
  source: Source,
  warmed: Warmed,
  n: number,
  width: number,
): Promise<Floor> {
  const root = `${session.controller.data.own}/floor`;
  const vms: Vm[] = [];
  try {
    for (let index = 0; index < n; index++) {
      await mkdir(`${root}/${index}`, { recursive: true });
      await session.helper.cloneFile(source.upper, `${root}/${index}/upper.img`);
    }
    const start = performance.now();
    await inParallel(n, width, async (index) => {
      const vm = await source.start({ directory: `${root}/${index}`, tied: true });
      vms.push(vm);
      await connectGuest(await vm.channel()).eval({ language: warmed.language, code: warmed.code });
    });
    const wallMs = performance.now() - start;
    return { wallMs, emulatorPrivateMib: mean(vms.map(({ pid }) => memoryUse(pid).emulatorPrivateMib)) };
  } finally {
    await Promise.all(vms.map((vm) => vm.stop()));
    await rm(root, { recursive: true, force: true });
  }
}

import { mkdir, rm } from 'node:fs/promises';
import type { Vm } from '@forkd/engine';
import { connectGuest } from '@forkd/guest';
import type { Session, Warmed } from './session.js';

/**
 * The least a fan-out can cost on this engine: a loop that starts VMMs the fastest way the engine has, and evaluates. No identity, no
 * bookkeeping; the disks are cloned before the clock runs.
 */
export async function floor(
  { controller, helper }: Session,
  warmed: Warmed,
  n: number,
  width: number,
): Promise<number> {
  const source = await controller.source(warmed.tag);
  const root = `${controller.data.own}/floor`;
  const vms: Vm[] = [];
  try {
    for (let index = 0; index < n; index++) {
      await mkdir(`${root}/${index}`, { recursive: true });
      await helper.cloneFile(source.upper, `${root}/${index}/upper.img`);
    }
    const start = performance.now();
    let next = 0;
    const worker = async (): Promise<void> => {
      for (let index = next++; index < n; index = next++) {
        const vm = await source.start({ directory: `${root}/${index}`, tied: true });
        vms.push(vm);
        await connectGuest(await vm.channel()).eval({ language: warmed.language, code: warmed.code });
      }
    };
    await Promise.all(Array.from({ length: width }, worker));
    return performance.now() - start;
  } finally {
    await Promise.all(vms.map((vm) => vm.stop()));
    await rm(root, { recursive: true, force: true });
  }
}

import { constants } from 'node:os';
import type { Vm, VmExit } from '@forkd/engine';
import { ForkdError } from '@forkd/protocol';
import type { Cgroups } from './cgroups.js';

export interface SandboxExit extends VmExit {
  /** Where more is known than how it ended. */
  why?: string;
}

/** How a VM ended; one that the kernel has killed at its limit did not just vanish. */
export async function exitOf(
  cgroups: Cgroups,
  vm: Pick<Vm, 'exited'>,
  place: string,
  limitMib: number | null,
): Promise<SandboxExit> {
  const exit = await vm.exited;
  const killed = exit.signal === constants.signals.SIGKILL;
  if (!killed || limitMib === null || !(await cgroups.ranOutOfMemory(place))) return exit;
  return { ...exit, why: outOfMemory(limitMib) };
}

/** Why a child never became ready. */
export async function blameLimit(
  cgroups: Cgroups,
  place: string,
  limitMib: number | null,
  thrown: unknown,
): Promise<unknown> {
  if (limitMib === null || !(await cgroups.ranOutOfMemory(place))) return thrown;
  return new ForkdError('vmm_exited', outOfMemory(limitMib), {
    cause: thrown,
    hint: 'Spawn with a larger memory_limit_mib.',
  });
}

export function outOfMemory(limitMib: number): string {
  return `out of memory: limit ${limitMib} MiB`;
}

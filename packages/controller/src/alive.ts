import { constants } from 'node:os';
import type { Vm } from '@forkd/engine';
import { asForkdError, ForkdError } from '@forkd/protocol';

/** A connection breaks a moment before the exit of the VMM is known. */
const GRACE_MS = 300;

/** Waits for a step that needs the VM. When that dies, its end is the error, whatever else breaks because of it. */
export async function whileAlive<T>(vm: Vm, when: string, step: Promise<T>): Promise<T> {
  return Promise.race([blaming(vm, when, step), endOf(vm, when)]);
}

/** As `whileAlive`, for a step that ends by itself also without the VM: it is waited for. */
export async function blaming<T>(vm: Vm, when: string, step: Promise<T>): Promise<T> {
  try {
    return await step;
  } catch (thrown) {
    const { code } = asForkdError(thrown);
    if (code === 'vmm_exited' || code === 'guest_protocol' || code === 'internal')
      await Promise.race([endOf(vm, when), new Promise((resolve) => setTimeout(resolve, GRACE_MS))]);
    throw thrown;
  }
}

async function endOf(vm: Vm, when: string): Promise<never> {
  const exit = await vm.exited;
  if (exit.signal === constants.signals.SIGBUS)
    throw new ForkdError('disk_full', 'the disk filled up under the memory of the VM');
  throw new ForkdError('vmm_exited', `the VM ended ${when}\n${exit.lastWords}`.trimEnd());
}

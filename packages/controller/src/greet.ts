import { setTimeout as sleep } from 'node:timers/promises';
import type { Vm } from '@forkd/engine';
import { connectGuest, type GuestClient } from '@forkd/guest';
import { asForkdError } from '@forkd/protocol';

const ATTEMPTS = 5;
/** Until the guest has seen that nobody listens any more. */
const PAUSE_MS = 50;

/**
 * Connects to a guest that may have been saved in the middle of telling somebody something: the rest of that is what the
 * first connection hears, and what was said on that may break the second one.
 */
export async function greet(vm: Vm, firstWords: (guest: GuestClient) => Promise<unknown>): Promise<GuestClient> {
  for (let attempt = 1; ; attempt++) {
    const guest = connectGuest(await vm.channel());
    try {
      await firstWords(guest);
      return guest;
    } catch (thrown) {
      guest.close();
      const { code } = asForkdError(thrown);
      if (attempt === ATTEMPTS || (code !== 'vmm_exited' && code !== 'guest_protocol')) throw thrown;
      await sleep(PAUSE_MS * attempt);
    }
  }
}

import { setTimeout as sleep } from 'node:timers/promises';
import type { Vm } from '@forkd/engine';
import { connectGuest, type GuestClient, hail } from '@forkd/guest';
import { asForkdError } from '@forkd/protocol';
import type { SnapshotMeta } from './snapshot.js';

const ATTEMPTS = 5;
/** How long a guest that is hailed may be deaf, the first time; each time it may be for twice as long. */
const DEAF_MS = 400;
/** Until the guest has seen that nobody listens any more. */
const PAUSE_MS = 50;

/** How a guest is spoken to. */
export interface Manner {
  /** What makes it listen. */
  key: string;
  isTalking: boolean;
}

/** Connects to a guest. One that was saved or left while it may have been talking to somebody is hailed first. */
export async function greet(
  vm: Vm,
  { key, isTalking }: Manner,
  firstWords: (guest: GuestClient) => Promise<unknown>,
): Promise<GuestClient> {
  // A VMM does not tell its guest of a connection that was lost while the guest stood still; of this one it does.
  if (isTalking) (await vm.channel()).destroy();
  for (let attempt = 1; ; attempt++) {
    const channel = await vm.channel();
    let guest: GuestClient | undefined;
    try {
      if (isTalking || attempt > 1) await hail(channel, key, DEAF_MS * 2 ** (attempt - 1));
      guest = connectGuest(channel);
      await firstWords(guest);
      return guest;
    } catch (thrown) {
      guest?.close();
      channel.destroy();
      const { code } = asForkdError(thrown);
      if (attempt === ATTEMPTS || (code !== 'vmm_exited' && code !== 'guest_protocol')) throw thrown;
      await sleep(PAUSE_MS * attempt);
    }
  }
}

/** Children of a branch are copies of a guest that had a connection. */
export function mannerOf({ hail: key, branch, compacted }: SnapshotMeta): Manner {
  return { key, isTalking: branch !== null || compacted !== null };
}

import { setTimeout as sleep } from 'node:timers/promises';
import type { Wish, WishAnswer } from '@forkd/guest';
import { asForkdError, type ErrorCode, ForkdError, parseTag } from '@forkd/protocol';
import type { Sandbox } from './sandbox.js';
import type { Forked } from './spawn-options.js';

/** A guest that goes on asking for what it cannot have costs the host no more than this often. */
const PAUSE_MS = 200;
const MOST_CHILDREN = 1000;

/** What a guest may read of an error. The others may name things of the host. */
const TELLABLE: readonly ErrorCode[] = [
  'invalid_request',
  'budget_exceeded',
  'tag_exists',
  'state_conflict',
  'overloaded',
  'disk_full',
  'timeout',
  'cancelled',
];

export interface GuestFork {
  n: number;
  tag: string | undefined;
}

/** Does what processes of a sandbox ask for, one after the other, until it ends or is let go. */
export async function hearWishes(
  sandbox: Sandbox,
  fulfil: (wish: GuestFork, signal: AbortSignal) => Promise<Forked>,
): Promise<void> {
  const ended = new AbortController();
  void sandbox.exited.then(() => ended.abort());
  try {
    for await (const wish of sandbox.guest.wishes()) {
      const answer = await answerTo(wish, (checked) => fulfil(checked, ended.signal));
      // One that is paused takes it when it goes on; who does not wait any more does not want it.
      await sandbox.guest.answerWish(wish.id, answer, { timeoutMs: 0 }).catch(() => {});
      await sleep(PAUSE_MS, undefined, { ref: false });
    }
  } catch {
    // The connection is gone: with the sandbox, or because another program is to take it over.
  }
}

async function answerTo(wish: Wish, fulfil: (wish: GuestFork) => Promise<Forked>): Promise<WishAnswer> {
  try {
    const { tag, results } = await fulfil(checked(wish));
    const children = results.flatMap((result) => (result.ok ? [result.sandbox.id] : []));
    const failed = results.flatMap((result) => (result.ok ? [] : [tellable(result.error).message]));
    return { role: 'source', tag, children, failed };
  } catch (thrown) {
    return { error: tellable(asForkdError(thrown)) };
  }
}

function checked({ fork, tag }: Wish): GuestFork {
  if (!Number.isInteger(fork) || fork < 0 || fork > MOST_CHILDREN)
    throw new ForkdError('invalid_request', `--fork is 0 to ${MOST_CHILDREN}`);
  return { n: fork, tag: tag === null ? undefined : parseTag(tag) };
}

function tellable({ code, message, hint }: ForkdError): { code: string; message: string; hint: string } {
  if (TELLABLE.includes(code)) return { code, message, hint };
  return { code, message: 'the host could not do it', hint: 'The events of the host say more.' };
}

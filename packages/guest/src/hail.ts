import { randomBytes } from 'node:crypto';
import type { Duplex } from 'node:stream';
import { ForkdError } from '@forkd/protocol';

const WORD = 'FORKD/1';

/**
 * Makes a guest that may still be talking to somebody else, or only believe so, listen to this connection from here on. What it
 * says until it has understood is not for us. `key` is on its kernel's command line.
 */
export function hail(socket: Duplex, key: string, timeoutMs: number): Promise<void> {
  const number = randomBytes(8).toString('hex');
  const answer = Buffer.from(`${WORD} ${number}\n`);
  let heard = Buffer.alloc(0);
  return new Promise((resolve, reject) => {
    const settle = (settled: () => void): void => {
      clearTimeout(timer);
      socket.off('data', hear).off('close', gone).pause();
      settled();
    };
    const late = new ForkdError('guest_protocol', `the guest did not listen within ${timeoutMs} ms`);
    const timer = setTimeout(() => settle(() => reject(late)), timeoutMs);
    const gone = (): void => settle(() => reject(new ForkdError('vmm_exited', 'the connection to the guest was lost')));
    const hear = (chunk: Buffer): void => {
      heard = Buffer.concat([heard, chunk]);
      const at = heard.indexOf(answer);
      if (at < 0) {
        heard = heard.subarray(-answer.length);
        return;
      }
      const isLast = at + answer.length === heard.length;
      settle(isLast ? resolve : () => reject(new ForkdError('guest_protocol', 'the guest spoke before it was asked')));
    };
    socket.on('data', hear).on('close', gone);
    socket.write(`${WORD} ${key} ${number}\n`);
  });
}

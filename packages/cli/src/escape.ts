const ENTER = [0x0d, 0x0a];
const TILDE = 0x7e;
const DOT = 0x2e;

/** Finds `Enter ~ .` in what is typed: the way out of a terminal that does not answer any more. */
export class Escape {
  #state: 'line start' | 'tilde' | 'elsewhere' = 'line start';

  /** What is to be sent, and whether to leave. */
  feed(typed: Uint8Array): { send: Uint8Array; isLeaving: boolean } {
    const send: number[] = [];
    for (const byte of typed) {
      if (this.#state === 'tilde') {
        if (byte === DOT) return { send: Uint8Array.from(send), isLeaving: true };
        send.push(TILDE);
      }
      if (this.#state === 'line start' && byte === TILDE) {
        this.#state = 'tilde';
        continue;
      }
      this.#state = ENTER.includes(byte) ? 'line start' : 'elsewhere';
      send.push(byte);
    }
    return { send: Uint8Array.from(send), isLeaving: false };
  }
}

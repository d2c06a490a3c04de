/** Lets `burst` pass at once, and `rate` a second after that. */
export class Bucket {
  #left: number;
  #at = performance.now();

  constructor(
    private readonly rate: number,
    private readonly burst: number,
  ) {
    this.#left = burst;
  }

  take(): boolean {
    const now = performance.now();
    this.#left = Math.min(this.burst, this.#left + ((now - this.#at) / 1000) * this.rate);
    this.#at = now;
    if (this.#left < 1) return false;
    this.#left--;
    return true;
  }
}

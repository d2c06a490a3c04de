/** How long the parts of something took. */
export class Phases {
  readonly ms: Record<string, number> = {};

  /** A part that is done again counts together. */
  async time<T>(part: string, work: Promise<T>): Promise<T> {
    const since = performance.now();
    try {
      return await work;
    } finally {
      this.ms[part] = (this.ms[part] ?? 0) + performance.now() - since;
    }
  }
}

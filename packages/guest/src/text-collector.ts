import { StringDecoder } from 'node:string_decoder';

const DEFAULT_LIMIT = 8 << 20;

/** Collects two streams as text, up to a limit for both together. */
export class TextCollector {
  readonly #texts = { stdout: '', stderr: '' };
  readonly #decoders = { stdout: new StringDecoder('utf8'), stderr: new StringDecoder('utf8') };
  #left: number;
  #truncated = false;

  constructor(limit = DEFAULT_LIMIT) {
    this.#left = limit;
  }

  add(stream: 'stdout' | 'stderr', data: Buffer): void {
    const kept = data.subarray(0, this.#left);
    if (kept.length < data.length) this.#truncated = true;
    this.#left -= kept.length;
    this.#texts[stream] += this.#decoders[stream].write(kept);
  }

  markTruncated(): void {
    this.#truncated = true;
  }

  finish(): { stdout: string; stderr: string; truncated: boolean } {
    return {
      stdout: this.#texts.stdout + this.#decoders.stdout.end(),
      stderr: this.#texts.stderr + this.#decoders.stderr.end(),
      truncated: this.#truncated,
    };
  }
}

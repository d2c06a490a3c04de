import type { ClientHttp2Stream, IncomingHttpHeaders, IncomingHttpStatusHeader } from 'node:http2';
import { ForkdError } from '@forkd/protocol';

export interface CallOptions {
  signal?: AbortSignal | undefined;
  /** 0 means no limit. */
  timeoutMs?: number | undefined;
}

export type ResponseHeaders = IncomingHttpHeaders & IncomingHttpStatusHeader;

/** One request and its reply: ends on time, on abort and with the connection, and always says which of them it was. */
export class Exchange {
  readonly stream: ClientHttp2Stream;
  readonly response: Promise<ResponseHeaders>;
  readonly #whyLost: () => ForkdError | undefined;
  readonly #release: () => void;
  #failure: ForkdError | undefined;

  constructor(
    stream: ClientHttp2Stream,
    whyLost: () => ForkdError | undefined,
    what: string,
    { signal, timeoutMs = 0 }: CallOptions,
  ) {
    this.stream = stream;
    this.#whyLost = whyLost;
    const onAbort = () => this.fail(new ForkdError('cancelled', `${what} was cancelled`));
    const onTimeout = () => this.fail(new ForkdError('timeout', `${what}: no answer within ${timeoutMs} ms`));
    const timer = timeoutMs > 0 ? setTimeout(onTimeout, timeoutMs) : undefined;
    signal?.addEventListener('abort', onAbort, { once: true });
    this.#release = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
    };
    stream.on('error', () => {});
    stream.once('close', this.#release);
    this.response = new Promise((resolve, reject) => {
      stream.once('response', resolve);
      stream.once('close', () => reject(this.reason()));
    });
    this.response.catch(() => {});
    if (signal?.aborted) onAbort();
  }

  /** Lets the exchange outlive its time limit and its signal. */
  unguard(): void {
    this.#release();
  }

  fail(error: ForkdError): void {
    this.#failure ??= error;
    // Not `close`: it would first send the end of the body, and half an upload would look whole.
    this.stream.destroy(error);
  }

  /** Stops caring for the rest of the reply. */
  abandon(): void {
    if (!this.stream.closed) this.fail(new ForkdError('cancelled', 'the caller stopped reading'));
  }

  /** Why the exchange broke off. */
  reason(): ForkdError {
    const code = this.stream.rstCode ?? 0;
    return (
      this.#failure ??
      this.#whyLost() ??
      new ForkdError('guest_protocol', `the guest broke off its reply (HTTP/2 code ${code})`)
    );
  }

  async *chunks(): AsyncGenerator<Buffer> {
    let whole = false;
    try {
      for await (const chunk of this.stream) yield chunk as Buffer;
      whole = true;
    } catch {
      throw this.reason();
    } finally {
      if (!whole) this.abandon();
    }
    // A stream that is cut off still looks ended to whoever reads it.
    if (this.#failure || this.stream.aborted || this.stream.rstCode) throw this.reason();
  }

  async collect(limit: number): Promise<Buffer> {
    const parts: Buffer[] = [];
    let size = 0;
    for await (const chunk of this.chunks()) {
      size += chunk.length;
      if (size > limit) throw new ForkdError('too_large', `the guest's reply is larger than ${limit} bytes`);
      parts.push(chunk);
    }
    return Buffer.concat(parts, size);
  }

  /** Sends a body of any length, as fast as the guest takes it. */
  async send(body: AsyncIterable<Uint8Array | string> | Iterable<Uint8Array | string>): Promise<void> {
    for await (const chunk of body) {
      if (this.stream.destroyed || this.stream.writableEnded) return;
      if (!this.stream.write(chunk)) await this.#drained();
    }
    this.stream.end();
  }

  #drained(): Promise<void> {
    const { stream } = this;
    return new Promise((resolve) => {
      const done = () => {
        stream.off('drain', done).off('close', done);
        resolve();
      };
      stream.on('drain', done).on('close', done);
    });
  }
}

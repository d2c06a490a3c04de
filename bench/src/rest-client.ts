import { Agent, request } from 'node:http';

/** JSON over connections that are kept: what a client that cares does. */
export class RestClient implements Disposable {
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 256 });

  constructor(private readonly url: string) {}

  /** The parsed answer; throws on every status from 400 on. */
  call<T>(method: string, path: string, body?: unknown): Promise<T> {
    const text = body === undefined ? undefined : JSON.stringify(body);
    const headers =
      text === undefined ? {} : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) };
    return new Promise((resolve, reject) => {
      const sent = request(this.url + path, { method, agent: this.#agent, headers }, (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.on('error', reject);
        response.on('end', () => {
          const answer = Buffer.concat(chunks).toString();
          const status = response.statusCode ?? 0;
          if (status >= 400) reject(new Error(`${method} ${path}: ${status} ${answer.slice(0, 500)}`));
          else resolve((answer === '' ? undefined : JSON.parse(answer)) as T);
        });
      });
      sent.on('error', reject);
      sent.end(text);
    });
  }

  /** Calls `onData` with each piece of a streamed answer as it arrives; whoever asks ends it. Without a body it is a GET. */
  stream(path: string, body: unknown, onData: (piece: string) => void): { end(): void } {
    const text = body === undefined ? undefined : JSON.stringify(body);
    const asked = text === undefined ? {} : { 'content-type': 'application/json', accept: 'application/x-ndjson' };
    const method = text === undefined ? 'GET' : 'POST';
    const sent = request(this.url + path, { method, agent: false, headers: asked }, (response) =>
      response
        .setEncoding('utf8')
        .on('data', onData)
        .on('error', () => {}),
    );
    sent.on('error', () => {});
    sent.end(text);
    return { end: () => void sent.destroy() };
  }

  [Symbol.dispose](): void {
    this.#agent.destroy();
  }
}

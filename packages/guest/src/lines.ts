import { ForkdError } from '@forkd/protocol';

/** The lines of a reply, none longer than `limit`. */
export async function* lines(what: string, chunks: AsyncIterable<Buffer>, limit: number): AsyncGenerator<Buffer> {
  let parts: Buffer[] = [];
  let size = 0;
  for await (const chunk of chunks) {
    let rest = chunk;
    for (let at = rest.indexOf(10); at >= 0; at = rest.indexOf(10)) {
      yield Buffer.concat([...parts, rest.subarray(0, at)]);
      parts = [];
      size = 0;
      rest = rest.subarray(at + 1);
    }
    if (rest.length > 0) parts.push(rest);
    size += rest.length;
    if (size > limit) throw new ForkdError('too_large', `${what}: a line of more than ${limit} bytes`);
  }
}

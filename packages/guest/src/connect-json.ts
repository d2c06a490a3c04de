import { ForkdError } from '@forkd/protocol';
import { z } from 'zod';
import { type Refusal, refused } from './refusal.js';
import { parseReply } from './transport.js';

const HEADER = 5;
const END_OF_STREAM = 2;
/** An honest event is a chunk of output or a file change: far below this. */
const FRAME_LIMIT = 1 << 20;

const End = z.object({ error: z.object({ code: z.string(), message: z.string().default('') }).optional() });

/** One message in the envelope of a Connect stream. */
export function envelope(message: unknown): Buffer {
  const payload = Buffer.from(JSON.stringify(message));
  const header = Buffer.alloc(HEADER);
  header.writeUInt32BE(payload.length, 1);
  return Buffer.concat([header, payload]);
}

/** The messages of a Connect stream; throws what its end frame reports, and if it has none. */
export async function* messages<S extends z.ZodType>(
  what: string,
  chunks: AsyncIterable<Buffer>,
  schema: S,
  special?: Refusal,
): AsyncGenerator<z.output<S>> {
  let pending: Buffer = Buffer.alloc(0);
  for await (const chunk of chunks) {
    pending = pending.length === 0 ? chunk : Buffer.concat([pending, chunk]);
    while (pending.length >= HEADER) {
      const flags = pending.readUInt8(0);
      const length = pending.readUInt32BE(1);
      if (length > FRAME_LIMIT) throw new ForkdError('guest_protocol', `${what}: an event of ${length} bytes`);
      if (pending.length < HEADER + length) break;
      const payload = pending.subarray(HEADER, HEADER + length);
      pending = pending.subarray(HEADER + length);
      if ((flags & END_OF_STREAM) === 0) {
        yield parseReply(what, payload, schema);
        continue;
      }
      const { error } = parseReply(what, payload, End);
      if (error) throw refused(what, error.code, error.message, special);
      return;
    }
  }
  throw new ForkdError('guest_protocol', `${what}: the guest ended the stream without saying how`);
}

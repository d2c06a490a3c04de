import { z } from 'zod';
import type { CallOptions } from './exchange.js';
import { lines } from './lines.js';
import { get, parseReply, post, type Transport } from './transport.js';

const LINE_LIMIT = 8 << 10;

/** What a process of the guest asks for; whether it makes sense is for those to say who can answer it. */
const Wish = z.object({ id: z.number().int(), fork: z.number(), tag: z.string().nullable() });
export type Wish = z.output<typeof Wish>;

export type WishAnswer =
  | { role: 'source'; tag: string; children: string[]; failed: string[] }
  | { error: { code: string; message: string; hint: string } };

/** Wishes as they are made, for as long as the connection lasts. The next one is read when the caller wants it. */
export async function* wishes(transport: Transport, options: CallOptions): AsyncGenerator<Wish> {
  const request = { what: 'wishes', headers: get('/forkd/wishes') };
  const exchange = transport.open(request, options);
  await transport.accepted(exchange, request);
  for await (const line of lines(request.what, exchange.chunks(), LINE_LIMIT))
    yield parseReply(request.what, line, Wish);
}

export async function answerWish(
  transport: Transport,
  id: number,
  answer: WishAnswer,
  options: CallOptions,
): Promise<void> {
  const request = { what: 'answer a wish', headers: post('/forkd/wishes') };
  await transport.call(request, { id, answer }, z.object({}), options);
}

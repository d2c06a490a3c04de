import fastify from 'fastify';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { begun, keptAlive, serverSentEvent, streamReply } from './stream-reply.js';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

it('silence is broken by a comment every 15 s, and ends with the events', async () => {
  let say: (text: string) => void = () => {};
  let ended = false;
  async function* source(): AsyncGenerator<string> {
    try {
      yield 'first';
      yield await new Promise<string>((resolve) => {
        say = resolve;
      });
      yield 'never taken';
    } finally {
      ended = true;
    }
  }
  const events = keptAlive(source());
  expect((await events.next()).value).toBe('first');
  for (let time = 0; time < 2; time++) {
    const next = events.next();
    await vi.advanceTimersByTimeAsync(15_000);
    expect((await next).value).toBe(': still here\n\n');
  }
  const next = events.next();
  await vi.advanceTimersByTimeAsync(1_000);
  say('second');
  expect((await next).value).toBe('second');
  await events.return(undefined);
  expect([ended, vi.getTimerCount()]).toEqual([true, 0]);
});

it('a guest cannot forge events', () => {
  const event = serverSentEvent('a\n\nevent: b', { text: 'x\n\nevent: c\r\n\u2028' });
  expect(event.trimEnd().split('\n')).toEqual([
    'event: a__event__b',
    `data: ${JSON.stringify({ text: 'x\n\nevent: c\r\n\u2028' })}`,
  ]);
});

it('what does not begin in time is given up', async () => {
  const giveUp = new AbortController();
  const starting = new Promise<never>((_, reject) => {
    giveUp.signal.addEventListener('abort', () => reject(new Error('cancelled')));
  });
  const outcome = expect(begun('watch', starting, giveUp)).rejects.toMatchObject({ code: 'timeout' });
  await vi.advanceTimersByTimeAsync(30_000);
  await outcome;
  expect(await begun('watch', Promise.resolve(1), new AbortController())).toBe(1);
  expect(vi.getTimerCount()).toBe(0);
});

it('a stream that ends when the server is closing does not hold it up', async () => {
  vi.useRealTimers();
  const app = fastify();
  let end = (): void => {};
  async function* parts(): AsyncGenerator<string> {
    yield 'x';
    await new Promise<void>((resolve) => {
      end = resolve;
    });
  }
  app.get('/', (_request, reply) => streamReply(reply, 'text/plain', parts()));
  app.addHook('preClose', async () => void setTimeout(() => end(), 100));
  const reply = await fetch(await app.listen({ host: '127.0.0.1', port: 0 }));
  const since = performance.now();
  await Promise.all([app.close(), reply.text()]);
  expect(performance.now() - since).toBeLessThan(3_000);
});

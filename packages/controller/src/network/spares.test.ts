import { closeSockets, HostHelper } from '@forkd/host';
import { expect, it } from 'vitest';
import { SPARE, Spares } from './spares.js';
import { tapsOf } from './taps.js';
import { DEFAULT_RANGE, wiringOf } from './wiring.js';

it('after many were taken as many are made for the next time, once nobody takes any', async () => {
  await using helper = HostHelper.start();
  const spares = new Spares(
    () => helper.makeNetwork(wiringOf(DEFAULT_RANGE)),
    async ({ number, sockets }) => {
      closeSockets(sockets);
      await helper.dropNetwork(number);
    },
  );
  const many = SPARE + 8;
  const taken = [];
  for (let count = 0; count < many; count++) taken.push(await spares.take());
  expect(new Set(taken.map(({ number }) => number)).size).toBe(many);
  await expect.poll(() => tapsOf(helper.pid!), { timeout: 10_000 }).toBe(2 * many);
  await spares.close();
  expect(tapsOf(helper.pid!)).toBe(many);
  for (const { sockets } of taken) closeSockets(sockets);
}, 30_000);

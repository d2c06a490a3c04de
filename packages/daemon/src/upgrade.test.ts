import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { WebSocket, WebSocketServer } from 'ws';
import { watchLife } from './upgrade.js';

beforeEach(() => void vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] }));
afterEach(() => void vi.useRealTimers());

it.each([true, false])('a client that answers pings (%s) keeps its connection, and no other', async (autoPong) => {
  const server = new WebSocketServer({ host: '127.0.0.1', port: 0 });
  await once(server, 'listening');
  const client = new WebSocket(`ws://127.0.0.1:${(server.address() as AddressInfo).port}`, { autoPong });
  const [socket] = (await once(server, 'connection')) as [WebSocket];
  if (client.readyState !== WebSocket.OPEN) await once(client, 'open');
  watchLife(socket);
  vi.advanceTimersByTime(30_000);
  await once(client, 'ping');
  if (autoPong) await once(socket, 'pong');
  const closed = once(socket, 'close');
  vi.advanceTimersByTime(30_000);
  if (autoPong) {
    await once(client, 'ping');
    expect(socket.readyState).toBe(WebSocket.OPEN);
    client.terminate();
  }
  await closed;
  client.terminate();
  server.close();
});

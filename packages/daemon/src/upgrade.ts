import { type IncomingMessage, type Server, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { ForkdError } from '@forkd/protocol';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { type WebSocket, WebSocketServer } from 'ws';
import { endAndLinger } from './linger.js';

/** More than anybody types or pastes at once. */
const FRAME_LIMIT = 1 << 20;

const PING_MS = 30_000;

export interface Upgrade {
  socket: Duplex;
  head: Buffer;
}

const upgrades = new WeakMap<IncomingMessage, Upgrade>();

/** Sends requests for an upgrade the way of every other one, so that none gets past the hooks. */
export function acceptUpgrades(app: FastifyInstance, server: Server): void {
  server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    upgrades.set(request, { socket, head });
    socket.on('error', () => socket.destroy());
    const response = new ServerResponse(request);
    response.shouldKeepAlive = false;
    response.assignSocket(socket as Parameters<ServerResponse['assignSocket']>[0]);
    response.once('finish', () => endAndLinger(socket));
    app.routing(request, response);
  });
}

/** The connection of a request for an upgrade. */
export function upgradeOf(request: IncomingMessage): Upgrade | undefined {
  return upgrades.get(request);
}

/** Throws unless the client asks for a WebSocket. */
export function requireUpgrade({ raw }: FastifyRequest): void {
  const { origin, host } = raw.headers;
  // Browsers let any page open a WebSocket anywhere, and only say which page it was.
  if (origin !== undefined && (!URL.canParse(origin) || new URL(origin).host !== host))
    throw new ForkdError('forbidden', 'a page of another site may not open this', {
      hint: 'Open it from a page of this daemon, or from a program.',
    });
  if (!upgrades.has(raw) || raw.headers.upgrade?.toLowerCase() !== 'websocket')
    throw new ForkdError('invalid_request', 'this route speaks WebSocket only', {
      hint: 'Connect with a WebSocket client (ws:// or wss://).',
    });
}

/** From here on the connection is a WebSocket. A handshake that is not valid is answered like any bad request. */
export async function upgraded({ raw }: FastifyRequest, reply: FastifyReply): Promise<WebSocket> {
  const { socket, head } = upgrades.get(raw)!;
  const server = new WebSocketServer({ noServer: true, maxPayload: FRAME_LIMIT, clientTracking: false });
  const webSocket = await new Promise<WebSocket>((resolve, reject) => {
    server.once('wsClientError', ({ message }) =>
      reject(new ForkdError('invalid_request', `the WebSocket handshake is not valid: ${message}`)),
    );
    server.handleUpgrade(raw, socket, head, resolve);
  });
  reply.hijack();
  reply.raw.statusCode = 101;
  return webSocket;
}

/** Ends a connection on which nothing has come back for a while, not even the answer to a ping; the result is called with every sign of life. */
export function watchLife(socket: WebSocket): () => void {
  let alive = true;
  const sign = (): void => {
    alive = true;
  };
  const timer = setInterval(() => {
    // Who is not read cannot answer.
    if (!alive && !socket.isPaused) return socket.terminate();
    alive = false;
    socket.ping();
  }, PING_MS);
  socket.on('pong', sign);
  socket.once('close', () => clearInterval(timer));
  return sign;
}

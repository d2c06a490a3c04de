import { type ClientRequest, request as httpRequest, type IncomingMessage, type OutgoingHttpHeaders } from 'node:http';
import { type Duplex, pipeline } from 'node:stream';
import type { GuestClient } from '@forkd/guest';
import { ForkdError } from '@forkd/protocol';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { type Upgrade, upgradeOf } from '../upgrade.js';
import { framing, toClient, toGuest, type Way } from './headers.js';

/** Until the guest begins to answer; long, because some answer only when something has happened. */
const ANSWER_MS = 300_000;
const CONNECT_MS = 10_000;
const HEADER_BYTES = 32 << 10;
const KEEP_ALIVE_MS = 60_000;

interface Exchange {
  request: FastifyRequest;
  reply: FastifyReply;
  guest: GuestClient;
  way: Way;
  /** Path and query, as the client wrote them. */
  path: string;
  signal: AbortSignal;
}

/** Asks the program at a port of a guest in place of the client. Nothing is copied as it came: both heads are made anew. */
export async function forward(exchange: Exchange): Promise<FastifyReply> {
  const { request, reply, guest, way, signal } = exchange;
  const { raw } = request;
  const upgrade = upgradeOf(raw);
  if (upgrade) checkUpgrade(raw);
  const headers = { ...toGuest(raw, way), ...(upgrade ? UPGRADE : framing(raw)) };
  const socket = await guest.connect(way.port, { signal, timeoutMs: CONNECT_MS });
  const leave = (): unknown => socket.destroy();
  signal.addEventListener('abort', leave);
  socket.once('close', () => signal.removeEventListener('abort', leave));
  try {
    signal.throwIfAborted();
    const asked = ask(exchange, socket, headers);
    if (upgrade) asked.end();
    else sendBody(raw, asked);
    const { answer, stream } = await answered(asked, way.port);
    reply.hijack();
    if (upgrade && stream) join(exchange, upgrade, answer, stream);
    else {
      reply.raw.writeHead(answer.statusCode ?? 502, toClient(answer, way, request.id));
      // Who waits for events shall know that they will come.
      reply.raw.flushHeaders();
      pipeline(answer, reply.raw, leave);
    }
    return reply;
  } catch (thrown) {
    leave();
    throw thrown;
  }
}

const UPGRADE = { connection: 'Upgrade', upgrade: 'websocket' };

function checkUpgrade({ headers }: IncomingMessage): void {
  const isEmpty = headers['transfer-encoding'] === undefined && Number(headers['content-length'] ?? 0) === 0;
  if (isEmpty && headers.upgrade?.toLowerCase() === 'websocket') return;
  throw new ForkdError(
    'invalid_request',
    'a connection can only be upgraded to WebSocket, by a request without a body',
  );
}

function ask({ request, path }: Exchange, socket: Duplex, headers: OutgoingHttpHeaders): ClientRequest {
  const { method } = request.raw;
  return httpRequest({
    createConnection: () => socket,
    ...(method !== undefined && { method }),
    path,
    headers,
    setHost: false,
    maxHeaderSize: HEADER_BYTES,
  } as object);
}

function sendBody(raw: IncomingMessage, asked: ClientRequest): void {
  // Not a pipeline: a guest that answers before it has read everything must not cost the client its answer.
  raw.pipe(asked);
  asked.once('close', () => {
    raw.unpipe(asked);
    raw.resume();
  });
}

/** `stream`: the guest has upgraded the connection. */
function answered(asked: ClientRequest, port: number): Promise<{ answer: IncomingMessage; stream?: Duplex }> {
  return new Promise((resolve, reject) => {
    const late = new ForkdError('timeout', `port ${port} did not begin to answer within ${ANSWER_MS / 1000} s`);
    const timer = setTimeout(() => asked.destroy(late), ANSWER_MS);
    asked.once('close', () => clearTimeout(timer));
    asked.on('error', (thrown) => reject(thrown instanceof ForkdError ? thrown : unanswered(thrown, port)));
    asked.once('response', (answer) => {
      clearTimeout(timer);
      const { statusCode = 0 } = answer;
      if (statusCode >= 200 && statusCode <= 599) return resolve({ answer });
      asked.destroy();
      reject(noHttp(port));
    });
    asked.once('upgrade', (answer, stream, head) => {
      clearTimeout(timer);
      if (head.length > 0) stream.unshift(head);
      if (answer.headers.upgrade?.toLowerCase() === 'websocket') return resolve({ answer, stream });
      stream.destroy();
      reject(unanswered(new Error('it upgraded a connection that nobody asked it to'), port));
    });
  });
}

function unanswered(cause: NodeJS.ErrnoException, port: number): ForkdError {
  if (!cause.code?.startsWith('HPE_'))
    return new ForkdError('guest_error', `port ${port} closed the connection before it had answered`, {
      cause,
      hint: 'Look at what the program in the sandbox prints.',
    });
  return noHttp(port, cause);
}

function noHttp(port: number, cause?: Error): ForkdError {
  return new ForkdError('guest_protocol', `what port ${port} answers is not HTTP`, {
    cause,
    hint: 'For other protocols use `forkd port-forward`.',
  });
}

/** The two ends of a WebSocket speak to each other from here on. */
function join({ request, reply, way }: Exchange, upgrade: Upgrade, answer: IncomingMessage, stream: Duplex): void {
  const { socket, head } = upgrade;
  const headers = { ...toClient(answer, way, request.id), ...UPGRADE };
  const lines = Object.entries(headers).flatMap(([name, value]) => [value].flat().map((one) => `${name}: ${one}`));
  reply.raw.statusCode = 101;
  socket.write(`HTTP/1.1 101 Switching Protocols\r\n${lines.join('\r\n')}\r\n\r\n`, 'latin1');
  // A client that is silent may also be gone.
  request.raw.socket.setKeepAlive(true, KEEP_ALIVE_MS);
  if (head.length > 0) socket.unshift(head);
  pipeline(socket, stream, socket, () => {});
}

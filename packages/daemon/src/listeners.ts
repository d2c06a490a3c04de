import { readFileSync } from 'node:fs';
import { createServer, type Server, type ServerOptions } from 'node:http';
import { createServer as createTlsServer, type Server as TlsServer } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import { createSecureContext } from 'node:tls';
import { asForkdError, ForkdError } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { type Config, isLoopback } from './config.js';
import { notePeer } from './peer.js';
import { replyRawErrors } from './raw-replies.js';
import { listenOnSocket } from './unix-socket.js';

const OPTIONS: ServerOptions = {
  maxHeaderSize: 16 << 10,
  // A client that sends a byte now and then holds a connection no longer than this.
  headersTimeout: 5_000,
  // Long, because files are uploaded.
  requestTimeout: 600_000,
  connectionsCheckingInterval: 1_000,
  keepAliveTimeout: 72_000,
  // Refused by a hook, in the one shape of errors.
  requireHostHeader: false,
};
const HANDSHAKE_MS = 10_000;
const MAX_CONNECTIONS = 2048;
const DRAIN_MS = 30_000;
/** How long a stream gets to say goodbye. */
const FAREWELL_MS = 500;

export interface Listeners {
  /** Reads certificate and key again; throws, and keeps the old ones, when they are not good. */
  reload(): void;
  /** Takes no more connections, ends streams at once, and waits until all else is answered, but not forever. */
  drain(): Promise<void>;
}

/**
 * Listens on TCP, on the Unix socket, or both.
 *
 * The app's own server never listens: it only receives what the servers here hand on. Requests go to `app.routing`.
 * Upgrades are emitted on `app.server`, so `app.server.on('upgrade', …)` sees those of every listener if it is attached
 * before `listen` is called; without it an upgrade is an ordinary request. No hook has run for an upgrade: give it a
 * ServerResponse and pass it to `app.routing`, and it is counted, authenticated and audited like every other request.
 */
export async function listen(app: FastifyInstance, config: Config): Promise<Listeners> {
  await app.ready();
  const sockets = new Set<Socket>();
  const servers: Server[] = [];
  let tlsServer: TlsServer | undefined;
  try {
    if (config.socket !== undefined) {
      const server = handOn(createServer(OPTIONS), app, sockets, true);
      await listenOnSocket(server, config.socket);
      servers.push(server);
      app.log.info(`listening on ${config.socket}`);
    }
    if (config.tcp) {
      const { host, port, tls } = config.tcp;
      if (tls)
        tlsServer = createTlsServer({
          ...OPTIONS,
          ...readTls(tls),
          handshakeTimeout: HANDSHAKE_MS,
          minVersion: 'TLSv1.2',
        });
      const server = handOn(tlsServer ?? createServer(OPTIONS), app, sockets, false);
      await listenOnTcp(server, host, port);
      servers.push(server);
      const { port: bound } = server.address() as AddressInfo;
      app.log.info(`listening on ${tls ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${bound}`);
      if (!tls && !isLoopback(host)) app.log.warn('tokens are sent in the clear: give --tls-cert and --tls-key');
    }
  } catch (thrown) {
    for (const server of servers) server.close();
    throw thrown;
  }
  return {
    reload: () => {
      if (config.tcp?.tls) tlsServer?.setSecureContext({ ...readTls(config.tcp.tls), minVersion: 'TLSv1.2' });
    },
    drain: () => drain(app, servers, sockets),
  };
}

function handOn(server: Server | TlsServer, app: FastifyInstance, sockets: Set<Socket>, local: boolean): Server {
  server.maxConnections = MAX_CONNECTIONS;
  server.on('connection', (socket: Socket) => {
    notePeer(socket, local);
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
  });
  // Under TLS, requests name the socket that does the encryption.
  server.on('secureConnection', (socket: Socket) => notePeer(socket, local));
  server.on('request', app.routing);
  if (app.server.listenerCount('upgrade') > 0)
    server.on('upgrade', (request, socket, head) => {
      // The server has given the connection up, with its way of handling errors.
      socket.on('error', () => socket.destroy());
      app.server.emit('upgrade', request, socket, head);
    });
  replyRawErrors(server);
  return server;
}

async function listenOnTcp(server: Server, host: string, port: number): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', (thrown: NodeJS.ErrnoException) =>
      reject(
        new ForkdError('host_unfit', `cannot listen on ${host} port ${port}: ${thrown.code ?? thrown.message}`, {
          hint:
            thrown.code === 'EADDRINUSE'
              ? 'Does a daemon run already? If not, choose another --bind.'
              : 'Choose another --bind.',
          cause: thrown,
        }),
      ),
    );
    server.listen({ host, port }, resolve);
  });
}

function readTls({ cert, key }: { cert: string; key: string }): { cert: Buffer; key: Buffer } {
  try {
    const pair = { cert: readFileSync(cert), key: readFileSync(key) };
    // Fails when one does not belong to the other.
    createSecureContext(pair);
    return pair;
  } catch (thrown) {
    throw new ForkdError('invalid_request', `cannot use the certificate ${cert} with the key ${key}`, {
      hint: `Both must be PEM files that belong together (${asForkdError(thrown).message}).`,
      cause: thrown,
    });
  }
}

async function drain(app: FastifyInstance, servers: Server[], sockets: Set<Socket>): Promise<void> {
  const closed = Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  for (const operation of app.operations) {
    operation.reply.raw.shouldKeepAlive = false;
    if (operation.endless) operation.abort();
  }
  const farewell = setTimeout(() => {
    for (const { endless, request } of app.operations) if (endless) request.raw.socket.destroy();
  }, FAREWELL_MS);
  // A connection that becomes idle only now, or that was upgraded and is in no operation, must not hold the drain.
  const idle = setInterval(() => {
    for (const server of servers) server.closeIdleConnections();
    if (app.operations.size === 0) for (const socket of sockets) socket.destroySoon();
  }, FAREWELL_MS);
  const deadline = setTimeout(() => {
    for (const socket of sockets) socket.destroy();
  }, DRAIN_MS);
  await closed;
  for (const timer of [farewell, idle, deadline]) clearTimeout(timer);
  await app.close();
}

import {
  Agent,
  type ClientRequestArgs,
  createServer,
  type IncomingMessage,
  request,
  type Server,
  type ServerResponse,
} from 'node:http';
import { isIP, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { connect as connectTls } from 'node:tls';
import { hostName } from '@forkd/protocol';
import type { Verdict } from './decide.js';
import type { Outlet } from './outlet.js';
import { relay, reset } from './relay.js';
import type { Claim, Destination, Route } from './route.js';

const LARGEST_HEAD = 64 << 10;
const KEEP_ALIVE_MS = 60_000;

/** They are about one connection, not about the request; we have a connection of our own. */
const HOP = ['connection', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade', 'expect'];

/** Whose requests they are. */
export interface Origin {
  readonly outlet: Outlet;
  readonly destination: Destination;
  readonly socket: Socket;
  findRoute(claim: Claim): Promise<Route>;
  connect(route: Route): Promise<Socket>;
  allow(verdict: Verdict & { name: string | undefined }): void;
  deny(verdict: Verdict & { name?: string | undefined }): void;
  cut(): void;
}

interface Context {
  connection: Origin;
  /** The host we speak for, over TLS. */
  host: string | undefined;
  agent: RoutingAgent;
}

/** Reads requests one by one, so that each goes where the policy lets that one go. */
export class HttpProxy {
  readonly #contexts = new WeakMap<Duplex, Context>();
  readonly #server: Server;
  readonly #roots: string[] | undefined;

  /** `roots`: whom to believe who a host is. @default those of Node */
  constructor(roots?: string[]) {
    this.#roots = roots;
    this.#server = createServer({ maxHeaderSize: LARGEST_HEAD, keepAliveTimeout: KEEP_ALIVE_MS })
      .on('request', (incoming, reply) => this.#handle(incoming, reply.socket!, () => this.#forward(incoming, reply)))
      .on('upgrade', (incoming, socket, head) =>
        this.#handle(incoming, socket, () => this.#upgrade(incoming, socket, head)),
      )
      .on('connect', (_incoming, socket) => reset(socket))
      .on('clientError', (_error, socket) => reset(socket));
    // A client that has said all it wants to say is still answered.
    Object.assign(this.#server, { httpAllowHalfOpen: true });
  }

  /** `host`: the one we speak for, else each request names its own. */
  serve(connection: Origin, socket: Duplex, host: string | undefined): void {
    const agent = new RoutingAgent(connection, host === undefined ? undefined : { host, roots: this.#roots });
    this.#contexts.set(socket, { connection, host, agent });
    socket.once('close', () => agent.destroy());
    this.#server.emit('connection', socket);
  }

  /** What fails after it was let through is told to the guest; what is not let through is cut off. */
  #handle(incoming: IncomingMessage, socket: Duplex, work: () => Promise<void>): void {
    incoming.on('error', () => {});
    work().catch(() => {
      const { connection } = this.#contexts.get(socket)!;
      connection.cut();
    });
  }

  async #route(incoming: IncomingMessage): Promise<{ context: Context; route: Route } | undefined> {
    const context = this.#contexts.get(incoming.socket)!;
    const { connection, host } = context;
    const claim = claimOf(incoming);
    // The answer to it would be the request, with all that was set on it.
    if (incoming.method === 'TRACE') {
      connection.deny({ allowed: false, rule: 'TRACE', name: claim?.name });
      return undefined;
    }
    if (claim === undefined || (host !== undefined && claim.name !== host)) {
      connection.deny({ allowed: false, rule: 'the request is for another host', name: claim?.name });
      return undefined;
    }
    const route = await connection.findRoute(claim);
    if (route.allowed) return { context, route };
    connection.deny(route);
    return undefined;
  }

  async #forward(incoming: IncomingMessage, reply: ServerResponse): Promise<void> {
    const found = await this.#route(incoming);
    if (!found) return;
    const { connection } = found.context;
    const outgoing = this.#request(incoming, found, []);
    outgoing.on('socket', () => connection.allow(found.route));
    reply.on('close', () => {
      if (!reply.writableFinished) outgoing.destroy();
    });
    incoming.pipe(outgoing);
    await new Promise<void>((resolve, reject) => {
      outgoing.once('error', (error: NodeJS.ErrnoException) => {
        if (reply.headersSent || connection.socket.destroyed) return reject(error);
        // Why, but nothing about the host's network.
        reply.writeHead(502, { 'content-type': 'text/plain', connection: 'close' });
        reply.end(`forkd: the host could not be reached: ${error.code ?? 'failed'}\n`);
        resolve();
      });
      outgoing.once('response', (response) => {
        reply.writeHead(response.statusCode!, response.statusMessage, endToEnd(response));
        reply.flushHeaders();
        response.once('error', reject).once('aborted', () => reject(new Error('cut off')));
        response.pipe(reply).once('finish', resolve).once('close', resolve);
      });
    });
  }

  /** WebSocket: after the answer, bytes both ways. */
  async #upgrade(incoming: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    socket.on('error', () => {});
    const found = await this.#route(incoming);
    if (!found) return;
    const protocol = incoming.headers.upgrade ?? '';
    // After another one, such as HTTP/2, requests could name other hosts: the server is not told of the wish.
    const isSocket = protocol.toLowerCase() === 'websocket';
    const outgoing = this.#request(incoming, found, isSocket ? ['Connection', 'Upgrade', 'Upgrade', protocol] : []);
    await new Promise<void>((resolve, reject) => {
      outgoing.once('error', reject);
      outgoing.once('upgrade', (response, upstream, first) => {
        found.context.connection.allow(found.route);
        socket.write(headText(response, ['Connection', 'Upgrade', 'Upgrade', protocol]));
        if (first.length > 0) upstream.unshift(first);
        if (head.length > 0) socket.unshift(head);
        relay(socket, upstream);
        resolve();
      });
      outgoing.once('response', (response) => {
        socket.write(headText(response, ['Connection', 'close']));
        response.pipe(socket).once('finish', resolve);
      });
      outgoing.end();
    });
  }

  #request(incoming: IncomingMessage, { context, route }: { context: Context; route: Route }, more: string[]) {
    const { connection, host } = context;
    const rule = host === undefined ? undefined : connection.outlet.settings.rules[host];
    const set = Object.entries(rule?.headers ?? {}).flat();
    const headers = [
      ...['Host', incoming.headers.host ?? connection.destination.address],
      ...endToEnd(incoming, ['host', ...Object.keys(rule?.headers ?? {})]),
      ...set,
      ...(incoming.headers['transfer-encoding'] === undefined ? [] : ['Transfer-Encoding', 'chunked']),
      ...more,
    ];
    const { method, url } = incoming;
    context.agent.routes.set(keyOf(route), route);
    return request({
      agent: context.agent,
      host: keyOf(route),
      port: connection.destination.port,
      method: method!,
      path: url!,
      headers,
    });
  }
}

/** Keeps connections to where the requests of one connection go. */
class RoutingAgent extends Agent {
  readonly routes = new Map<string, Route>();

  constructor(
    private readonly connection: Origin,
    private readonly secure: { host: string; roots: string[] | undefined } | undefined,
  ) {
    super({ keepAlive: true, maxSockets: 8, maxFreeSockets: 1 });
  }

  // Node calls it to get a connection, and takes one that comes later too.
  override createConnection(
    options: ClientRequestArgs,
    done?: (error: Error | null, socket: Duplex) => void,
  ): undefined {
    const route = this.routes.get(options.host ?? '')!;
    void this.#open(route).then(
      (socket) => done?.(null, socket),
      (error: Error) => done?.(error, undefined as never),
    );
  }

  async #open(route: Route): Promise<Socket> {
    const socket = await this.connection.connect(route);
    if (!this.secure) return socket;
    const { host, roots } = this.secure;
    const secure = connectTls({
      socket,
      servername: host,
      rejectUnauthorized: true,
      ALPNProtocols: ['http/1.1'],
      minVersion: 'TLSv1.2',
      ...(roots && { ca: roots }),
    });
    await new Promise<void>((resolve, reject) => {
      secure.once('secureConnect', resolve).once('error', reject);
      secure.once('close', () => reject(new Error('closed')));
    });
    return secure;
  }
}

function keyOf({ name, addresses }: Route): string {
  return name ?? addresses[0]!;
}

/** `undefined`: it cannot be told which host it is for. */
function claimOf({ url = '', rawHeaders, headers }: IncomingMessage): Claim | undefined {
  const hosts = rawHeaders.filter((name, index) => index % 2 === 0 && name.toLowerCase() === 'host');
  if (!(url.startsWith('/') || url === '*') || hosts.length > 1) return undefined;
  const { host } = headers;
  if (host === undefined || host === '') return { name: undefined, isHidden: false };
  const text = host.replace(/:\d{1,5}$/, '');
  const name = isIP(text) === 0 ? hostName(text) : undefined;
  return { name, isHidden: name === undefined };
}

/** Names and values one after the other, without those about the connection and those given. */
function endToEnd({ rawHeaders, headers }: IncomingMessage, without: string[] = []): string[] {
  const listed = (headers.connection ?? '').split(',').map((name) => name.trim().toLowerCase());
  const left = new Set([...HOP, ...listed, ...without]);
  return rawHeaders.flatMap((name, index) =>
    index % 2 === 0 && !left.has(name.toLowerCase()) ? [name, rawHeaders[index + 1]!] : [],
  );
}

function headText(response: IncomingMessage, more: string[]): string {
  const fields = [...endToEnd(response), ...more];
  const lines = fields.flatMap((name, index) => (index % 2 === 0 ? [`${name}: ${fields[index + 1]}`] : []));
  return [`HTTP/1.1 ${response.statusCode} ${response.statusMessage}`, ...lines, '', ''].join('\r\n');
}

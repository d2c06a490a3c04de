import { createServer, type Server, type Socket } from 'node:net';
import { pipeline } from 'node:stream';
import { asForkdError, ForkdError } from '@forkd/protocol';
import type { Sandbox } from '@forkd/sdk';
import { command, option } from '../command.js';
import type { Context } from '../context.js';
import { usage } from '../usage.js';
import { quoted, text } from '../values.js';
import { CHILD } from './flags.js';
import { pickSandbox } from './pick-sandbox.js';

interface Forward {
  local: number;
  port: number;
}

export const portForward = command({
  name: 'port-forward',
  group: 'sandboxes',
  summary: 'Reach ports of a sandbox at ports of this host, until stopped',
  operands: [
    { name: 'ID', isOptional: true, complete: 'sandboxes' },
    { name: '[LOCAL:]PORT', isMany: true },
  ],
  flags: {
    ...CHILD,
    address: option('ADDRESS', text, 'Listen on this address', { fallback: '127.0.0.1' }),
  },
  examples: [
    'forkd port-forward sb-0123456789abcdefghij 8080:3000',
    'forkd port-forward sb-0123456789abcdefghij 0:5432',
  ],
  async run(context, { flags: { child, address }, operands }) {
    const { output, signal } = context;
    const { id, left } = pickSandbox(child, operands);
    const forwards = left.map(parseForward);
    if (forwards.length === 0)
      throw usage('say which ports', 'For example 8080:3000, or 3000; 0:3000 takes a free one.');
    const sandbox = await (await context.daemon()).sandboxes.get(id, { signal });
    const sockets = new Set<Socket>();
    const servers: Server[] = [];
    try {
      for (const forward of forwards) servers.push(await listen(context, sandbox, forward, address, sockets));
      const bound = servers.map((server, i) => ({ listen: addressOf(server), port: forwards[i]!.port }));
      await output.result(bound, () =>
        bound.map((one) => output.good(`${one.listen} -> ${id} port ${one.port}`)).join('\n'),
      );
      await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
    } finally {
      for (const server of servers) server.close();
      for (const socket of sockets) socket.destroy();
    }
  },
});

function parseForward(given: string): Forward {
  const match = /^(?:(\d{1,5}):)?(\d{1,5})$/.exec(given);
  const [port, local] = [Number(match?.[2]), Number(match?.[1] ?? match?.[2])];
  if (match && port >= 1 && port <= 65_535 && local <= 65_535) return { local, port };
  throw usage(`not LOCAL:PORT: ${quoted(given)}`, 'For example 8080:3000.');
}

async function listen(
  context: Context,
  sandbox: Sandbox,
  { local, port }: Forward,
  host: string,
  sockets: Set<Socket>,
): Promise<Server> {
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    socket.once('close', () => sockets.delete(socket));
    void join(context, sandbox, port, socket);
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', ({ code, message }: NodeJS.ErrnoException) =>
      reject(
        new ForkdError('invalid_request', `cannot listen on ${host} port ${local}: ${code ?? message}`, {
          hint: 'Choose another one; 0 takes one that is free.',
        }),
      ),
    );
    server.listen({ host, port: local }, resolve);
  });
  return server;
}

async function join({ output, signal }: Context, sandbox: Sandbox, port: number, socket: Socket): Promise<void> {
  try {
    const remote = await sandbox.connect(port, { signal });
    pipeline(socket, remote, socket, () => {});
  } catch (thrown) {
    socket.destroy();
    if (!signal.aborted) output.error(asForkdError(thrown));
  }
}

function addressOf(server: Server): string {
  const bound = server.address();
  if (bound === null || typeof bound === 'string') throw new ForkdError('internal', 'the server does not listen');
  return `${bound.family === 'IPv6' ? `[${bound.address}]` : bound.address}:${bound.port}`;
}

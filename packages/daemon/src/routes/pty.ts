import type { Controller } from '@forkd/controller';
import type { GuestProcess } from '@forkd/guest';
import { PtyInput, type PtyOutput, ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import type { WebSocket } from 'ws';
import { liveSandbox } from '../live-sandbox.js';
import { serveRoute } from '../serve-route.js';
import { begun, streamError } from '../stream-reply.js';
import { acceptUpgrades, requireUpgrade, upgraded, watchLife } from '../upgrade.js';
import { exitCode } from './exec.js';

const LOGIN_SHELL = 'for shell in "$SHELL" /bin/bash /bin/sh; do [ -x "$shell" ] && exec "$shell" -l; done';
/** How long a process may tidy up after its terminal is gone. */
const HANGUP_MS = 2_000;

/** Close codes of WebSocket. */
const NORMAL = 1000;
const GOING_AWAY = 1001;
const REFUSED = 1008;
const BROKEN = 1011;

export function ptyRoutes(app: FastifyInstance, controller: Controller): void {
  acceptUpgrades(app, app.server);
  serveRoute(app, ROUTES.pty, async ({ params, query, request, reply, signal }) => {
    const { guest } = liveSandbox(controller, request, params.id);
    requireUpgrade(request);
    const { cols, rows, command = LOGIN_SHELL, cwd, user, term } = query;
    const end = new AbortController();
    const giveUp = (): void => end.abort();
    signal.addEventListener('abort', giveUp);
    const program = { command, cwd, user, env: { TERM: term }, pty: { cols, rows }, signal: end.signal };
    const process = await begun('pty', guest.start(program), end);
    const socket = await upgraded(request, reply);
    // From now on who leaves is noticed by the socket, and the process is told before it is killed.
    signal.removeEventListener('abort', giveUp);
    signal.addEventListener('abort', () => {
      socket.close(GOING_AWAY, 'the daemon is stopping');
      setTimeout(() => socket.terminate(), HANGUP_MS).unref();
    });
    void converse(socket, process, end);
    return reply;
  });
}

/** Carries bytes between a terminal of the guest and a WebSocket until one of them ends. */
async function converse(socket: WebSocket, process: GuestProcess, end: AbortController): Promise<void> {
  let killer: NodeJS.Timeout | undefined;
  let over = false;
  socket.on('error', () => {});
  socket.once('close', () => {
    if (over) return;
    killer = setTimeout(() => end.abort(), HANGUP_MS);
    process.kill('SIGHUP', { timeoutMs: HANGUP_MS }).catch(() => {});
  });
  const alive = watchLife(socket);
  takeInput(socket, process, end.signal, alive);
  try {
    // One chunk at a time: while the client has not taken it, the guest is not read and its process waits.
    for await (const { data } of process) {
      await sent(socket, data);
      alive();
    }
    const exit = await process.wait();
    say(socket, { type: 'exit', exit_code: exitCode(exit), signal: exit.signal });
    over = true;
    socket.close(NORMAL);
  } catch (thrown) {
    say(socket, streamError(thrown));
    over = true;
    socket.close(BROKEN);
  } finally {
    clearTimeout(killer);
    end.abort();
  }
}

/** Feeds the terminal in the order of the frames, and takes no more from the client before it has swallowed those. */
function takeInput(socket: WebSocket, process: GuestProcess, signal: AbortSignal, alive: () => void): void {
  let waiting = 0;
  let last: Promise<void> = Promise.resolve();
  const take = async (data: Buffer, isBinary: boolean): Promise<void> => {
    if (isBinary) return process.write(data, { signal });
    const size = ptyInput(data);
    if (size) await process.resize(size, { signal });
    else socket.close(REFUSED, 'a text frame must be {"type":"resize","cols":…,"rows":…}');
  };
  socket.on('message', (data: Buffer, isBinary) => {
    alive();
    waiting++;
    socket.pause();
    last = last
      .then(() => take(data, isBinary))
      // A process that has just ended takes nothing any more: its exit is on the way.
      .catch(() => {})
      .then(() => {
        if (--waiting === 0) socket.resume();
      });
  });
}

function ptyInput(data: Buffer): PtyInput | undefined {
  try {
    return PtyInput.parse(JSON.parse(data.toString()));
  } catch {
    return undefined;
  }
}

function sent(socket: WebSocket, data: Buffer): Promise<void> {
  return new Promise((resolve) => socket.send(data, { binary: true }, () => resolve()));
}

function say(socket: WebSocket, message: PtyOutput): void {
  socket.send(JSON.stringify(message), () => {});
}

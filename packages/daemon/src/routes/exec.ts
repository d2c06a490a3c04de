import { constants } from 'node:os';
import type { Controller } from '@forkd/controller';
import { feed, type GuestProcess } from '@forkd/guest';
import { type ExecEvent, ForkdError, ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { liveSandbox } from '../live-sandbox.js';
import { serveRoute } from '../serve-route.js';
import { serverSentEvent, streamError, streamReply } from '../stream-reply.js';

/** How one event of a stream is written, by what the client accepts. */
const FORMATS: Record<string, (event: ExecEvent) => string> = {
  'application/x-ndjson': (event) => `${JSON.stringify(event)}\n`,
  'text/event-stream': (event) => serverSentEvent(event.type, event),
};

export function execRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.ping, async ({ params, request, signal }) => {
    const { guest, snapshot } = liveSandbox(controller, request, params.id);
    const { pid, protocol, uptime_ms } = await guest.health({ timeoutMs: 5_000, signal });
    return { pong: true, pid, agent_lang: snapshot.language ?? 'none', warmup_ready: true, protocol, uptime_ms };
  });
  serveRoute(app, ROUTES.exec, async ({ params, body, request, reply, signal }) => {
    const { args, timeout_secs, cwd, env, user, stdin } = body;
    const { guest } = liveSandbox(controller, request, params.id);
    const program = { args, cwd, env, user, timeoutMs: timeout_secs * 1000, signal };
    const type = accepted(request.headers.accept);
    if (type) {
      const process = await guest.start({ ...program, stdin: stdin !== undefined });
      return streamReply(reply, type, events(process, stdin, FORMATS[type]!));
    }
    const done = await guest.exec({ ...program, stdin });
    const { stdout, stderr, timedOut, truncated } = done;
    return { stdout, stderr, exit_code: exitCode(done), signal: done.signal, timed_out: timedOut, truncated };
  });
  serveRoute(app, ROUTES.eval, async ({ params, body, request, signal }) => {
    const { guest, snapshot } = liveSandbox(controller, request, params.id);
    const language = body.language ?? snapshot.language;
    if (!language)
      throw new ForkdError('invalid_request', `snapshot ${snapshot.tag} was warmed in no language`, {
        hint: 'Say which: "language": "python" or "node".',
      });
    const limits = { timeoutMs: body.timeout_secs * 1000, signal };
    const { result, error, stdout, stderr, mime } = await guest.eval({ language, code: body.code, ...limits });
    const text = error && (error.traceback || `${error.name}: ${error.value}`);
    return { result, error: text, exit_code: error ? 1 : 0, stdout, stderr, mime };
  });
}

/** The first type of a stream in the header; `undefined` for clients that want one JSON document. */
function accepted(header = ''): string | undefined {
  const types = header.split(',').map((item) => item.split(';')[0]!.trim().toLowerCase());
  return types.find((type) => Object.hasOwn(FORMATS, type));
}

async function* events(
  process: GuestProcess,
  stdin: string | undefined,
  written: (event: ExecEvent) => string,
): AsyncGenerator<string> {
  if (stdin !== undefined) void feed(process, stdin);
  try {
    for await (const { type, data } of process) yield written({ type, data: data.toString('base64') });
    const exit = await process.wait();
    const { signal, timedOut } = exit;
    yield written({ type: 'exit', exit_code: exitCode(exit), signal, timed_out: timedOut });
  } catch (thrown) {
    yield written(streamError(thrown));
  }
}

/** As a shell reports it: 124 after a timeout, 128 and the number of the signal for a program that was killed. */
export function exitCode(done: { exitCode: number | null; signal: string | null; timedOut: boolean }): number {
  if (done.timedOut) return 124;
  const signals: Record<string, number> = constants.signals;
  return done.exitCode ?? 128 + (signals[done.signal ?? ''] ?? 0);
}

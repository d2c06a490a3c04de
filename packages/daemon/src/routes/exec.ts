import { constants } from 'node:os';
import type { Controller, Sandbox } from '@forkd/controller';
import { ForkdError, ROUTES } from '@forkd/protocol';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { serveRoute } from '../serve-route.js';
import { visibleSandbox } from './sandboxes.js';

export function execRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.ping, async ({ params, request, signal }) => {
    const { guest, snapshot } = liveSandbox(controller, request, params.id);
    const { pid, protocol, uptime_ms } = await guest.health({ timeoutMs: 5_000, signal });
    return { pong: true, pid, agent_lang: snapshot.language ?? 'none', warmup_ready: true, protocol, uptime_ms };
  });
  serveRoute(app, ROUTES.exec, async ({ params, body, request, signal }) => {
    const { args, timeout_secs, cwd, env, user, stdin } = body;
    const { guest } = liveSandbox(controller, request, params.id);
    const done = await guest.exec({ args, cwd, env, user, stdin, timeoutMs: timeout_secs * 1000, signal });
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

/** As a shell reports it: 124 after a timeout, 128 and the number of the signal for a program that was killed. */
function exitCode(done: { exitCode: number | null; signal: string | null; timedOut: boolean }): number {
  if (done.timedOut) return 124;
  const signals: Record<string, number> = constants.signals;
  return done.exitCode ?? 128 + (signals[done.signal ?? ''] ?? 0);
}

export function liveSandbox(controller: Controller, { caller }: FastifyRequest, id: string): Sandbox {
  visibleSandbox(controller, caller, id);
  return controller.runningSandbox(id);
}

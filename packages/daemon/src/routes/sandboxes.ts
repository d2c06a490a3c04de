import { constants } from 'node:os';
import type { Controller, Sandbox } from '@forkd/controller';
import { ForkdError, GUEST_ADDR, ROUTES, type SandboxInfo } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { errorFields } from '../error-replies.js';
import { serveRoute } from '../serve-route.js';

export function sandboxRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.listSandboxes, ({ query }) =>
    controller
      .sandboxes()
      .filter(({ snapshot }) => query.snapshot_tag === undefined || snapshot.tag === query.snapshot_tag)
      .map(info),
  );
  serveRoute(app, ROUTES.getSandbox, ({ params }) => info(controller.sandbox(params.id)));
  serveRoute(app, ROUTES.spawn, async ({ body, query, reply }) => {
    const results = await controller.spawn({ tag: body.snapshot_tag, n: body.n, env: body.env });
    if (query.settle) {
      const settled = results.map((result) =>
        result.ok ? { sandbox: info(result.sandbox) } : { error: errorFields(result.error) },
      );
      return reply.code(201).send({ results: settled });
    }
    // A client of forkd expects all or nothing.
    const failed = results.find((result) => !result.ok);
    if (failed && !failed.ok) {
      await Promise.all(results.map((result) => (result.ok ? result.sandbox.kill() : undefined)));
      throw failed.error;
    }
    return reply.code(201).send(results.flatMap((result) => (result.ok ? [info(result.sandbox)] : [])));
  });
  serveRoute(app, ROUTES.killSandbox, async ({ params, reply }) => {
    await controller.sandbox(params.id).kill();
    return reply.code(204).send();
  });
  serveRoute(app, ROUTES.ping, async ({ params, signal }) => {
    const { guest, snapshot } = controller.sandbox(params.id);
    const { pid, protocol, uptime_ms } = await guest.health({ timeoutMs: 5_000, signal });
    return { pong: true, pid, agent_lang: snapshot.language ?? 'none', warmup_ready: true, protocol, uptime_ms };
  });
  serveRoute(app, ROUTES.exec, async ({ params, body, signal }) => {
    const { args, timeout_secs, cwd, env, user, stdin } = body;
    const { guest } = controller.sandbox(params.id);
    const done = await guest.exec({ args, cwd, env, user, stdin, timeoutMs: timeout_secs * 1000, signal });
    const { stdout, stderr, timedOut, truncated } = done;
    return { stdout, stderr, exit_code: exitCode(done), signal: done.signal, timed_out: timedOut, truncated };
  });
  serveRoute(app, ROUTES.eval, async ({ params, body, signal }) => {
    const { guest, snapshot } = controller.sandbox(params.id);
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

function info({ id, snapshot, vm, createdAt }: Sandbox): SandboxInfo {
  return {
    id,
    snapshot_tag: snapshot.tag,
    netns: null,
    guest_addr: GUEST_ADDR,
    created_at_unix: createdAt,
    pid: vm.pid,
    memory_limit_mib: null,
    has_branched: false,
    last_branch_memory_path: null,
    branch_count: 0,
    state: 'running',
    metadata: {},
    expires_at_unix: null,
    vcpus: snapshot.machine.vcpus,
    memory_mib: snapshot.machine.memoryMib,
    exit_reason: null,
  };
}

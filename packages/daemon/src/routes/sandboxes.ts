import type { Controller, Sandbox, SpawnResult } from '@forkd/controller';
import { ForkdError, Limits, ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { errorFields } from '../error-replies.js';
import { keyOf } from '../idempotency.js';
import { observeSpawn } from '../metrics.js';
import { networkWish } from '../network-wish.js';
import { audited } from '../operation.js';
import { sandboxInfo } from '../sandbox-info.js';
import { serveRoute } from '../serve-route.js';
import { ownerFilter, visibleSandbox, visibleSnapshot } from '../visible.js';

/** As many as one page holds unless the caller says otherwise. */
const PAGE = 1000;

/** What has not ended. */
const PRESENT = ['starting', 'running', 'paused', 'stopping'] as const;

export function sandboxRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.listSandboxes, ({ query, request, reply }) => {
    const limit = query.limit ?? PAGE;
    const records = controller.records({
      owner: ownerFilter(request.caller),
      states: query.state === undefined ? PRESENT : [query.state],
      snapshotTag: query.snapshot_tag,
      metadata: labels(query.metadata),
      after: query.page_token,
      limit: limit + 1,
    });
    const last = records.length > limit ? records[limit - 1] : undefined;
    if (last) reply.header('x-next-token', last.id);
    return records.slice(0, limit).map(sandboxInfo);
  });
  serveRoute(app, ROUTES.getSandbox, ({ params, request }) =>
    sandboxInfo(visibleSandbox(controller, request.caller, params.id)),
  );
  serveRoute(app, ROUTES.spawn, async ({ body, query, request, reply, signal }) => {
    await visibleSnapshot(controller, request.caller, body.snapshot_tag);
    const asked = performance.now();
    const requestKey = keyOf(request);
    const results = await controller.spawn({
      tag: body.snapshot_tag,
      n: body.n,
      owner: request.caller.name,
      env: body.env,
      metadata: body.metadata,
      ttl: body.ttl_secs,
      memoryLimitMib: body.memory_limit_mib,
      limits: Limits.parse(body),
      maxForks: body.max_forks,
      guestBranch: body.guest_branch,
      network: networkWish(body.network),
      requestKey,
      // Who comes back with the same key finds what was begun; without one nobody would ever learn of these children.
      ...(requestKey === undefined && { signal }),
    });
    const born = results.flatMap((result) => (result.ok ? [result.sandbox] : []));
    for (const { timeline } of born) observeSpawn(asked, timeline);
    audited(request, { snapshot: body.snapshot_tag, sandbox: born.map(({ id }) => id) });
    if (signal.aborted && requestKey === undefined) await killAll(born);
    if (query.settle) {
      return reply.code(201).send({ results: settledInfos(controller, results) });
    }
    // A client of forkd expects all or nothing.
    const failed = results.find((result) => !result.ok);
    if (failed && !failed.ok) {
      await killAll(born);
      throw failed.error;
    }
    return reply.code(201).send(born.map(({ id }) => sandboxInfo(controller.record(id))));
  });
  serveRoute(app, ROUTES.changeSandbox, ({ params, body, request }) => {
    visibleSandbox(controller, request.caller, params.id);
    const { ttl_secs, metadata } = body;
    return sandboxInfo(
      controller.change(params.id, {
        ...(ttl_secs !== undefined && { ttl: ttl_secs }),
        ...(metadata !== undefined && { metadata }),
      }),
    );
  });
  serveRoute(app, ROUTES.killSandbox, async ({ params, request, reply }) => {
    visibleSandbox(controller, request.caller, params.id);
    await controller.kill(params.id);
    return reply.code(204).send();
  });
  serveRoute(app, ROUTES.pause, async ({ params, request }) => {
    visibleSandbox(controller, request.caller, params.id);
    return sandboxInfo(await controller.pause(params.id));
  });
  serveRoute(app, ROUTES.resume, async ({ params, request }) => {
    visibleSandbox(controller, request.caller, params.id);
    return sandboxInfo(await controller.resume(params.id));
  });
}

async function killAll(sandboxes: Sandbox[]): Promise<void> {
  await Promise.all(sandboxes.map((sandbox) => sandbox.kill().catch(() => {})));
}

function labels(text: string | undefined): Record<string, string> {
  if (text === undefined) return {};
  const pairs = text.split(',').map((pair) => /^([A-Za-z0-9._/-]{1,64})=(.*)$/s.exec(pair));
  if (pairs.some((pair) => !pair))
    throw new ForkdError('invalid_request', 'query.metadata: give key=value, several joined by commas');
  return Object.fromEntries(pairs.map((pair) => [pair![1]!, pair![2]!]));
}

/** One entry per child, in order. */
export function settledInfos(controller: Controller, results: SpawnResult[]) {
  return results.map((result) =>
    result.ok ? { sandbox: sandboxInfo(controller.record(result.sandbox.id)) } : { error: errorFields(result.error) },
  );
}

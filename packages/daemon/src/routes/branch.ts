import type { BranchMode, Controller } from '@forkd/controller';
import { type BranchRequest, ForkdError, Limits, ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { keyOf } from '../idempotency.js';
import { networkWish } from '../network-wish.js';
import { audited } from '../operation.js';
import { serveRoute } from '../serve-route.js';
import { snapshotInfo } from '../snapshot-info.js';
import { visibleSandbox } from '../visible.js';
import { settledInfos } from './sandboxes.js';

export function branchRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.branch, async ({ params, body, request, reply, signal }) => {
    const { owner, snapshot_tag } = visibleSandbox(controller, request.caller, params.id);
    const { record, resumed, done } = controller.beginBranch(params.id, {
      tag: body.tag,
      mode: modeOf(body, snapshot_tag),
      measureDiff: body.measure_diff,
      ttl: body.ttl_secs,
      owner,
      rememberFailure: !body.wait,
      ...(body.wait && keyOf(request) === undefined && { signal }),
    });
    audited(request, { snapshot: record.tag });
    if (!body.wait) {
      done.catch((error: Error) => request.log.warn({ tag: record.tag, error: error.message }, 'branch failed'));
      await resumed;
      return reply.code(202).send(snapshotInfo(controller, record));
    }
    await done;
    return reply.code(201).send(snapshotInfo(controller, await controller.viewSnapshot(record.tag)));
  });
  serveRoute(app, ROUTES.fork, async ({ params, body, request, reply, signal }) => {
    const { owner, limits, memory_limit_mib } = visibleSandbox(controller, request.caller, params.id);
    const requestKey = keyOf(request);
    const { tag, results } = await controller.fork(params.id, {
      tag: body.tag,
      n: body.n,
      owner,
      env: body.env,
      metadata: body.metadata,
      ttl: body.ttl_secs,
      memoryLimitMib: body.memory_limit_mib ?? memory_limit_mib,
      limits: { ...limits, ...Limits.parse(body) },
      guestBranch: body.guest_branch,
      network: networkWish(body.network),
      requestKey,
      ...(requestKey === undefined && { signal }),
    });
    audited(request, {
      snapshot: tag,
      sandbox: [params.id, ...results.flatMap((result) => (result.ok ? [result.sandbox.id] : []))],
    });
    const snapshot = snapshotInfo(controller, await controller.viewSnapshot(tag));
    return reply.code(201).send({ snapshot, results: settledInfos(controller, results) });
  });
}

/** forkd's rules for its three ways of saying the same; where nothing is said, ours is the fastest. */
function modeOf(body: BranchRequest, parent: string): BranchMode {
  const { mode, diff, live, measure_diff, wait, parent_tag } = body;
  if (mode !== undefined && (diff || live)) throw invalid('give mode, or one of diff and live, not both');
  if ([measure_diff, diff, live].filter(Boolean).length > 1)
    throw invalid('of measure_diff, diff and live at most one can be given');
  const chosen = mode ?? (diff ? 'diff' : measure_diff ? 'full' : 'live');
  if (measure_diff && chosen !== 'full') throw invalid('measure_diff goes with mode full');
  if (!wait && chosen !== 'live') throw invalid('wait: false goes with mode live');
  if (parent_tag !== undefined && parent_tag !== parent)
    throw invalid(`parent_tag: the sandbox came from ${parent}, not from ${parent_tag}`);
  return chosen;
}

function invalid(message: string): ForkdError {
  return new ForkdError('invalid_request', message);
}

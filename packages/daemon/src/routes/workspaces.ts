import type { Controller, WorkspaceRecord } from '@forkd/controller';
import { ForkdError, Limits, ROUTES, type WorkspaceInfo } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import type { Caller } from '../caller.js';
import { networkWish } from '../network-wish.js';
import { audited } from '../operation.js';
import { serveRoute } from '../serve-route.js';
import { mayTouch, visibleSnapshot } from '../visible.js';

export function workspaceRoutes(app: FastifyInstance, controller: Controller): void {
  const { workspaces } = controller;
  serveRoute(app, ROUTES.listWorkspaces, ({ request }) =>
    workspaces
      .list()
      .filter((record) => mayTouch(request.caller, record))
      .map(info),
  );
  serveRoute(app, ROUTES.createWorkspace, async ({ body, request, reply }) => {
    const { name, snapshot_tag, memory_limit_mib, env, guest_branch, network } = body;
    await visibleSnapshot(controller, request.caller, snapshot_tag);
    const owner = request.caller.name;
    const limits = { memoryLimitMib: memory_limit_mib, limits: Limits.parse(body) };
    const given = { ...limits, env, guestBranch: guest_branch, network: networkWish(network) };
    const record = await workspaces.create({ name, snapshotTag: snapshot_tag, owner, ...given });
    audited(request, { snapshot: snapshot_tag, sandbox: record.sandbox_id ?? [] });
    return reply.code(201).send(info(record));
  });
  serveRoute(app, ROUTES.getWorkspace, ({ params, request }) => info(visible(controller, request.caller, params.name)));
  serveRoute(app, ROUTES.suspendWorkspace, async ({ params, request }) => {
    visible(controller, request.caller, params.name);
    return info(await workspaces.suspend(params.name));
  });
  serveRoute(app, ROUTES.resumeWorkspace, async ({ params, request }) => {
    visible(controller, request.caller, params.name);
    return info(await workspaces.resume(params.name));
  });
  serveRoute(app, ROUTES.deleteWorkspace, async ({ params, request, reply }) => {
    visible(controller, request.caller, params.name);
    await workspaces.delete(params.name);
    return reply.code(204).send();
  });
}

function visible({ workspaces }: Controller, caller: Caller, name: string): WorkspaceRecord {
  const record = workspaces.get(name);
  if (mayTouch(caller, record)) return record;
  throw new ForkdError('workspace_not_found', `there is no workspace ${JSON.stringify(name)}`);
}

function info(record: WorkspaceRecord): WorkspaceInfo {
  return {
    id: `ws-${record.name}`,
    name: record.name,
    source_snapshot_tag: record.source_tag,
    ...(record.state_tag !== null && { current_state_tag: record.state_tag }),
    status: record.status,
    ...(record.status === 'running' && { live_sandbox_id: record.sandbox_id! }),
    created_at_unix: record.created_at,
    last_active_unix: record.last_active,
    owner: record.owner,
  };
}

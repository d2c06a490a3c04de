import type { Controller } from '@forkd/controller';
import { ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { audited } from '../operation.js';
import { sandboxInfo } from '../sandbox-info.js';
import { serveRoute } from '../serve-route.js';
import { visibleSandbox, visibleSnapshot } from '../visible.js';

export function rollbackRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.rollback, async ({ params, body, request, signal }) => {
    visibleSandbox(controller, request.caller, params.id);
    await visibleSnapshot(controller, request.caller, body.snapshot_tag);
    audited(request, { snapshot: body.snapshot_tag });
    return sandboxInfo(await controller.rollback(params.id, body.snapshot_tag, signal));
  });
}

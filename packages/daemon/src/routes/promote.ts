import type { Controller } from '@forkd/controller';
import { ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { audited } from '../operation.js';
import { sandboxInfo } from '../sandbox-info.js';
import { serveRoute } from '../serve-route.js';
import { visibleSandbox } from '../visible.js';

export function promoteRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.promote, async ({ params, request, signal }) => {
    visibleSandbox(controller, request.caller, params.id);
    const source = controller.sandbox(params.id).snapshot.branch?.sandbox;
    // Who may not end the source may not take its id.
    if (source !== undefined && controller.store.sandbox(source)) visibleSandbox(controller, request.caller, source);
    const promoted = sandboxInfo(await controller.promote(params.id, signal));
    audited(request, { sandbox: [params.id, promoted.id] });
    return promoted;
  });
}

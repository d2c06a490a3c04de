import type { Controller } from '@forkd/controller';
import { ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { serveRoute } from '../serve-route.js';
import { visibleSandbox } from '../visible.js';

export function consoleRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.console, ({ params, request, reply }) => {
    visibleSandbox(controller, request.caller, params.id);
    const { vm } = controller.sandbox(params.id);
    return reply.type('text/plain; charset=utf-8').send(vm.console());
  });
}

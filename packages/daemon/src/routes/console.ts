import type { Controller } from '@forkd/controller';
import { ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { liveSandbox } from '../live-sandbox.js';
import { serveRoute } from '../serve-route.js';

export function consoleRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.console, ({ params, request, reply }) => {
    const { vm } = liveSandbox(controller, request, params.id);
    return reply.type('text/plain; charset=utf-8').send(vm.console());
  });
}

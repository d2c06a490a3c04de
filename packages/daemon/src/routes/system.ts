import type { Controller } from '@forkd/controller';
import { ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { metrics, metricsText } from '../metrics.js';
import { serveRoute } from '../serve-route.js';

export function systemRoutes(app: FastifyInstance, controller: Controller, version: string): void {
  serveRoute(app, ROUTES.health, () => ({ ok: true }));
  serveRoute(app, ROUTES.version, () => ({ version, api: 'v1', pid: process.pid }));
  serveRoute(app, ROUTES.metrics, async ({ reply }) => {
    metrics.snapshots.set((await controller.snapshots()).length);
    metrics.sandboxes.set(controller.sandboxes().length);
    metrics.branches.set(controller.branching);
    const { type, text } = await metricsText();
    return reply.type(type).send(text);
  });
}

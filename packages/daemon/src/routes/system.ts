import type { Controller } from '@forkd/controller';
import { ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import type { Outlets } from '../egress.js';
import { metrics, metricsText, observeEgress } from '../metrics.js';
import { serveRoute } from '../serve-route.js';

export function systemRoutes(app: FastifyInstance, controller: Controller, outlets: Outlets, version: string): void {
  serveRoute(app, ROUTES.health, () => ({ ok: true }));
  serveRoute(app, ROUTES.version, () => ({ version, api: 'v1', pid: process.pid }));
  serveRoute(app, ROUTES.metrics, async ({ reply }) => {
    metrics.snapshots.set((await controller.snapshots()).length);
    metrics.sandboxes.set(controller.sandboxes().length);
    metrics.branches.set(controller.branching);
    observeEgress(outlets.egress.totals(), await controller.networkDrops.totals());
    const { type, text } = await metricsText();
    return reply.type(type).send(text);
  });
}

import type { Controller } from '@forkd/controller';
import { ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { serveRoute } from '../serve-route.js';

export function systemRoutes(app: FastifyInstance, controller: Controller, version: string): void {
  serveRoute(app, ROUTES.health, () => ({ ok: true }));
  serveRoute(app, ROUTES.version, () => ({ version, api: 'v1' }));
  serveRoute(app, ROUTES.metrics, async ({ reply }) => {
    const gauges = {
      forkd_snapshots_total: (await controller.snapshots()).length,
      forkd_sandboxes_active: controller.sandboxes().length,
      forkd_branches_in_flight: 0,
      forkd_branch_concurrency_cap: 4,
      [`forkd_build_info{version="${version}"}`]: 1,
    };
    const lines = Object.entries(gauges).flatMap(([name, value]) => [
      `# TYPE ${name.split('{')[0]} gauge`,
      `${name} ${value}`,
    ]);
    return reply.type('text/plain; version=0.0.4').send(`${lines.join('\n')}\n`);
  });
}

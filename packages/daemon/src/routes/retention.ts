import type { Controller } from '@forkd/controller';
import { ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { serveRoute } from '../serve-route.js';
import { snapshotInfo } from '../snapshot-info.js';
import { ownSnapshot } from '../visible.js';

export function retentionRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.changeSnapshot, async ({ params, body, request }) => {
    await ownSnapshot(controller, request.caller, params.tag);
    const { ttl_secs, pinned } = body;
    const changed = await controller.changeSnapshot(params.tag, {
      ...(ttl_secs !== undefined && { ttl: ttl_secs }),
      ...(pinned !== undefined && { pinned }),
    });
    return snapshotInfo(controller, changed, request.caller);
  });
  serveRoute(app, ROUTES.gc, async ({ body }) => {
    const removed = await controller.gc({ dryRun: body.dry_run });
    return { dry_run: body.dry_run, removed, bytes: removed.reduce((sum, { bytes }) => sum + bytes, 0) };
  });
}

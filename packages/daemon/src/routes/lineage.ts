import type { Controller } from '@forkd/controller';
import { type LineageNode, ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { serveRoute } from '../serve-route.js';
import { mayRead, ownerFilter } from '../visible.js';

/** Who came from whom, as far as the caller may see it. */
export function lineageRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.lineage, async ({ request }): Promise<LineageNode[]> => {
    const snapshots = (await controller.snapshots()).filter((view) => mayRead(request.caller, view));
    const sandboxes = controller.records({ owner: ownerFilter(request.caller) });
    const names = new Set([...snapshots.map(({ tag }) => tag), ...sandboxes.map(({ id }) => id)]);
    return [
      ...snapshots.map(({ tag, owner, status, created_at, meta }) => {
        // The sandbox it was taken of while that is known, else the snapshot that sandbox came from.
        const parent = [meta?.branch?.sandbox, meta?.parent].find((name) => names.has(name ?? '')) ?? null;
        return { kind: 'snapshot' as const, name: tag, parent, state: status, created_at_unix: created_at, owner };
      }),
      ...sandboxes.map(({ id, owner, state, created_at, snapshot_tag }) => {
        return { kind: 'sandbox' as const, name: id, parent: snapshot_tag, state, created_at_unix: created_at, owner };
      }),
    ];
  });
}

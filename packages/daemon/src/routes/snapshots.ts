import { stat } from 'node:fs/promises';
import { type Controller, type SnapshotMeta, snapshotFiles } from '@forkd/controller';
import { loadRecipe } from '@forkd/images';
import { ForkdError, parseTag, ROUTES, type SnapshotInfo } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { serveRoute } from '../serve-route.js';

export function snapshotRoutes(app: FastifyInstance, controller: Controller, recipes: string): void {
  const directory = (tag: string): string => `${controller.data.snapshots}/${tag}`;
  const info = (meta: SnapshotMeta): SnapshotInfo => ({
    tag: meta.tag,
    dir: directory(meta.tag),
    created_at_unix: meta.created_at_unix,
    status: 'ready',
    bootable: true,
    recipe: meta.recipe,
    engine: meta.engine.kind,
    accel: meta.machine.accel,
    vcpus: meta.machine.vcpus,
    memory_mib: meta.machine.memoryMib,
  });

  serveRoute(app, ROUTES.listSnapshots, async () => (await controller.snapshots()).map(info));
  serveRoute(app, ROUTES.getSnapshot, async ({ params }) => info(await controller.snapshot(params.tag)));
  serveRoute(app, ROUTES.createSnapshot, async ({ body, reply, request }) => {
    if (body.recipe === undefined)
      throw new ForkdError('not_implemented', 'snapshots from a kernel and a root disk are not there yet', {
        hint: 'Give a recipe.',
      });
    const loaded = await loadRecipe(parseTag(body.recipe), recipes);
    const recipe = {
      ...loaded,
      memory_mib: body.memory_mib ?? loaded.memory_mib,
      vcpus: body.vcpus ?? loaded.vcpus,
    };
    const onProgress = (progress: object): void => request.log.info(progress, 'snapshot');
    const meta = await controller.createSnapshot({ tag: body.tag, recipe, recipeName: body.recipe, onProgress });
    return reply.code(201).send(info(meta));
  });
  serveRoute(app, ROUTES.deleteSnapshot, async ({ params, reply }) => {
    await controller.removeSnapshot(params.tag);
    return reply.code(204).send();
  });
  serveRoute(app, ROUTES.snapshotInfo, async ({ params }) => {
    const meta = await controller.snapshot(params.tag);
    const files = snapshotFiles(directory(meta.tag));
    const [memory, state] = await Promise.all([stat(files.memory), stat(files.state)]);
    const sandboxes = controller.sandboxes().filter(({ snapshot }) => snapshot.tag === meta.tag);
    return {
      tag: meta.tag,
      dir: directory(meta.tag),
      created_at_unix: meta.created_at_unix,
      memory_logical_bytes: memory.size,
      memory_physical_bytes: memory.blocks * 512,
      vmstate_bytes: state.size,
      chain_depth: 0,
      dependents: [],
      ancestors: [],
      sandboxes: sandboxes.map(({ id }) => id),
    };
  });
}

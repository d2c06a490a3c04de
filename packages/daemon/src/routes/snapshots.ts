import { stat } from 'node:fs/promises';
import { type Controller, type SnapshotView, snapshotFiles } from '@forkd/controller';
import { loadRecipe } from '@forkd/images';
import { type CreateSnapshot, parseTag, ROUTES, type SnapshotInfo } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { keyOf } from '../idempotency.js';
import { fromKernelAndRootfs } from '../kernel-and-rootfs.js';
import { bootTimer } from '../metrics.js';
import { audited } from '../operation.js';
import { serveRoute } from '../serve-route.js';
import { mayTouch, visibleSnapshot } from '../visible.js';

export function snapshotRoutes(app: FastifyInstance, controller: Controller, recipes: string): void {
  const directory = (tag: string): string => `${controller.data.snapshots}/${tag}`;
  const info = ({ meta, problem, ...record }: SnapshotView): SnapshotInfo => ({
    tag: record.tag,
    dir: directory(record.tag),
    created_at_unix: record.created_at,
    status: problem === undefined ? record.status : 'failed',
    bootable: meta !== undefined,
    owner: record.owner,
    ...(record.recipe !== null && { recipe: record.recipe }),
    ...(problem !== undefined && { warning: `snapshot is not bootable: ${problem}` }),
    ...(record.warning !== null && { warning: record.warning }),
    ...(meta && {
      engine: meta.engine.kind,
      accel: meta.machine.accel,
      vcpus: meta.machine.vcpus,
      memory_mib: meta.machine.memoryMib,
    }),
  });

  const fromRecipe = async (name: string, { memory_mib, vcpus }: CreateSnapshot) => {
    const recipe = await loadRecipe(parseTag(name), recipes);
    return {
      recipe: { ...recipe, memory_mib: memory_mib ?? recipe.memory_mib, vcpus: vcpus ?? recipe.vcpus },
      recipeName: name,
    };
  };

  serveRoute(app, ROUTES.listSnapshots, async ({ request }) =>
    (await controller.snapshots()).filter((view) => mayTouch(request.caller, view)).map(info),
  );
  serveRoute(app, ROUTES.getSnapshot, async ({ params, request }) =>
    info(await visibleSnapshot(controller, request.caller, params.tag)),
  );
  serveRoute(app, ROUTES.createSnapshot, async ({ body, reply, request, signal }) => {
    const source =
      body.recipe === undefined
        ? await fromKernelAndRootfs(body, request.caller, controller.data.images)
        : await fromRecipe(body.recipe, body);
    const boot = bootTimer();
    audited(request, { snapshot: body.tag });
    const { record, done } = controller.beginSnapshot({
      tag: body.tag,
      ...source,
      owner: request.caller.name,
      rememberFailure: !body.wait,
      onProgress: (progress) => {
        boot(progress.step);
        request.log.info(progress, 'snapshot');
      },
      ...(body.wait && keyOf(request) === undefined && { signal }),
    });
    if (!body.wait) {
      done.catch((error: Error) => request.log.warn({ tag: record.tag, error: error.message }, 'snapshot failed'));
      return reply.code(202).send(info(record));
    }
    await done;
    const made = info(await controller.viewSnapshot(body.tag));
    return reply.code(201).send(body.tap ? { ...made, warning: 'tap is not used: guests have no network yet' } : made);
  });
  serveRoute(app, ROUTES.deleteSnapshot, async ({ params, request, reply }) => {
    await visibleSnapshot(controller, request.caller, params.tag);
    await controller.removeSnapshot(params.tag);
    return reply.code(204).send();
  });
  serveRoute(app, ROUTES.snapshotInfo, async ({ params, request }) => {
    const { tag, created_at } = await visibleSnapshot(controller, request.caller, params.tag);
    await controller.snapshot(tag);
    const files = snapshotFiles(directory(tag));
    const [memory, state] = await Promise.all([stat(files.memory), stat(files.state)]);
    const sandboxes = controller.sandboxes().filter(({ snapshot }) => snapshot.tag === tag);
    return {
      tag,
      dir: directory(tag),
      created_at_unix: created_at,
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

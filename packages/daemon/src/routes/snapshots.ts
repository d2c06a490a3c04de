import { stat } from 'node:fs/promises';
import { ancestors, type Controller, descendants, type SnapshotView, snapshotFiles } from '@forkd/controller';
import { loadRecipe } from '@forkd/images';
import { type CreateSnapshot, ForkdError, parseTag, ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import type { Caller } from '../caller.js';
import { keyOf } from '../idempotency.js';
import { fromKernelAndRootfs } from '../kernel-and-rootfs.js';
import { bootTimer } from '../metrics.js';
import { audited } from '../operation.js';
import { serveRoute } from '../serve-route.js';
import { snapshotInfo } from '../snapshot-info.js';
import { mayRead, mayTouch, ownSnapshot, visibleSnapshot } from '../visible.js';

export function snapshotRoutes(app: FastifyInstance, controller: Controller, recipes: string): void {
  const fromRecipe = async (name: string, { memory_mib, vcpus }: CreateSnapshot) => {
    const recipe = await loadRecipe(parseTag(name), recipes);
    return {
      recipe: { ...recipe, memory_mib: memory_mib ?? recipe.memory_mib, vcpus: vcpus ?? recipe.vcpus },
      recipeName: name,
    };
  };

  serveRoute(app, ROUTES.listSnapshots, async ({ request }) =>
    (await controller.snapshots())
      .filter((view) => mayRead(request.caller, view))
      .map((view) => snapshotInfo(controller, view, request.caller)),
  );
  serveRoute(app, ROUTES.getSnapshot, async ({ params, request }) =>
    snapshotInfo(controller, await visibleSnapshot(controller, request.caller, params.tag), request.caller),
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
      return reply.code(202).send(snapshotInfo(controller, record));
    }
    await done;
    const made = snapshotInfo(controller, await controller.viewSnapshot(body.tag));
    return reply.code(201).send(body.tap ? { ...made, warning: 'tap is not used: every VM has one of its own' } : made);
  });
  serveRoute(app, ROUTES.shareSnapshot, async ({ params, body, request }) => {
    await ownSnapshot(controller, request.caller, params.tag);
    const sharedWith = body.with === 'all' ? ['*'] : [...new Set(body.with)];
    return snapshotInfo(controller, await controller.changeSnapshot(params.tag, { sharedWith }), request.caller);
  });
  serveRoute(app, ROUTES.deleteSnapshot, async ({ params, query, request, reply }) => {
    await ownSnapshot(controller, request.caller, params.tag);
    const { cascade = false, force = false } = query;
    if (!force) checkDescendants(request.caller, params.tag, await controller.snapshots());
    await controller.removeSnapshot(params.tag, { cascade, force });
    return reply.code(204).send();
  });
  serveRoute(app, ROUTES.compactSnapshot, async ({ params, body, request, signal }) => {
    const { owner } = await ownSnapshot(controller, request.caller, params.tag);
    await controller.compactSnapshot(params.tag, body.to, owner, signal);
    return snapshotInfo(controller, await controller.viewSnapshot(body.to));
  });
  serveRoute(app, ROUTES.snapshotInfo, async ({ params, request }) => {
    const { tag, created_at } = await visibleSnapshot(controller, request.caller, params.tag);
    const { parent, branch, hashes } = await controller.snapshot(tag);
    const directory = `${controller.data.snapshots}/${tag}`;
    const files = snapshotFiles(directory);
    const [memory, state] = await Promise.all([stat(branch?.diff ? files.diff : files.memory), stat(files.state)]);
    const views = await controller.snapshots();
    const readable = views.filter((view) => mayRead(request.caller, view));
    const isReadable = (name: string): boolean => readable.some((view) => view.tag === name);
    const before = ancestors(tag, views);
    return {
      tag,
      dir: directory,
      created_at_unix: created_at,
      memory_logical_bytes: memory.size,
      memory_physical_bytes: memory.blocks * 512,
      vmstate_bytes: state.size,
      ...(parent !== null && isReadable(parent) && { parent_tag: parent, parent_content_hash: hashes.memory }),
      chain_depth: before.length,
      dependents: readable.filter(({ meta }) => meta?.parent === tag).map((view) => view.tag),
      ancestors: before.filter(isReadable),
      sandboxes: controller
        .sandboxes()
        .filter((sandbox) => sandbox.snapshot.tag === tag && mayTouch(request.caller, sandbox))
        .map(({ id }) => id),
    };
  });
}

/** Others may have branched what they spawned from a shared snapshot: those are not the owner's to remove. */
function checkDescendants(caller: Caller, tag: string, views: SnapshotView[]): void {
  const below = new Set(descendants(tag, views));
  if (views.every((view) => !below.has(view.tag) || mayTouch(caller, view))) return;
  throw new ForkdError('state_conflict', `snapshot ${tag} is the parent of snapshots of other owners`, {
    hint: 'Leave them with force: they go on working.',
  });
}

import type { Controller } from '@forkd/controller';
import type { FileInfo as GuestFile, WatchEvent } from '@forkd/guest';
import { type FileEvent, type FileInfo, ForkdError, ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { liveSandbox } from '../live-sandbox.js';
import { serveRoute } from '../serve-route.js';
import { begun, keptAlive, serverSentEvent, streamError, streamReply } from '../stream-reply.js';

/** As long as a command may run: files have no size limit, so it is only there to end what hangs. */
const TRANSFER_MS = 86_400_000;

export function fileRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.readFile, async ({ params, query, request, reply, signal }) => {
    const { guest } = liveSandbox(controller, request, params.id);
    const limits = { user: query.user, timeoutMs: TRANSFER_MS, signal };
    const { size, stream } = await guest.files.readStream(query.path, limits);
    if (size !== undefined) reply.header('content-length', size);
    // A browser must never show it as a page of the daemon.
    return reply.type('application/octet-stream').header('content-disposition', 'attachment').send(stream);
  });
  app.register((scope, _options, done) => {
    uploadRoute(scope, controller);
    done();
  });
  serveRoute(app, ROUTES.removeFile, async ({ params, query, request, reply, signal }) => {
    const { guest } = liveSandbox(controller, request, params.id);
    await guest.files.remove(query.path, { user: query.user, signal });
    return reply.code(204).send();
  });
  serveRoute(app, ROUTES.statFile, async ({ params, query, request, signal }) => {
    const { guest } = liveSandbox(controller, request, params.id);
    return info(await guest.files.stat(query.path, { user: query.user, signal }));
  });
  serveRoute(app, ROUTES.listFiles, async ({ params, query, request, signal }) => {
    const { guest } = liveSandbox(controller, request, params.id);
    const { path, depth, user } = query;
    return (await guest.files.list(path, { depth, user, signal })).map(info);
  });
  serveRoute(app, ROUTES.makeFolder, async ({ params, query, request, reply, signal }) => {
    const { guest } = liveSandbox(controller, request, params.id);
    const options = { user: query.user, signal };
    const made = await guest.files.makeDir(query.path, options);
    return reply.code(made ? 201 : 200).send(info(await guest.files.stat(query.path, options)));
  });
  serveRoute(app, ROUTES.moveFile, async ({ params, body, request, signal }) => {
    const { guest } = liveSandbox(controller, request, params.id);
    return info(await guest.files.rename(body.from, body.to, { user: body.user, signal }));
  });

  serveRoute(app, ROUTES.watchFiles, async ({ params, query, request, reply, signal }) => {
    const { guest } = liveSandbox(controller, request, params.id);
    const watch = new AbortController();
    signal.addEventListener('abort', () => watch.abort());
    const { path, recursive = false, user } = query;
    const starting = guest.files.watch(path, { recursive, user, signal: watch.signal });
    const changes = await begun('watch', starting, watch);
    return streamReply(reply, 'text/event-stream', keptAlive(watchEvents(changes, watch.signal)));
  });
}

/** In a scope of its own: its body is not JSON and of any length. */
function uploadRoute(scope: FastifyInstance, controller: Controller): void {
  scope.removeAllContentTypeParsers();
  scope.addContentTypeParser('application/octet-stream', (_request, payload, done) => done(null, payload));
  scope.addContentTypeParser('*', (_request, _payload, done) => {
    const hint = 'Send "Content-Type: application/octet-stream".';
    done(new ForkdError('unsupported_media_type', 'the body of an upload is the bytes of the file', { hint }));
  });
  serveRoute(scope, ROUTES.writeFile, async ({ params, query, request, reply, signal }) => {
    const { guest } = liveSandbox(controller, request, params.id);
    const bytes = (request.body as AsyncIterable<Buffer> | undefined) ?? [];
    await guest.files.writeStream(query.path, bytes, { user: query.user, timeoutMs: TRANSFER_MS, signal });
    return reply.code(204).send();
  });
}

async function* watchEvents(changes: AsyncIterable<WatchEvent>, ended: AbortSignal): AsyncGenerator<string> {
  yield serverSentEvent('start', {});
  try {
    for await (const { type, name, entry } of changes) {
      yield serverSentEvent(type, { name, entry: entry ? info(entry) : null } satisfies FileEvent);
      // The folder itself has no name: it is gone, and nothing can happen in it any more.
      if (type === 'remove' && name === '') return;
    }
  } catch (thrown) {
    if (!ended.aborted) yield serverSentEvent('error', streamError(thrown));
  }
}

function info({ modifiedTime, symlinkTarget, ...file }: GuestFile): FileInfo {
  return { ...file, modified_at: modifiedTime ?? null, symlink_target: symlinkTarget ?? null };
}

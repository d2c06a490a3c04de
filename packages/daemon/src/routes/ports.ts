import type { Controller } from '@forkd/controller';
import { ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { liveSandbox } from '../live-sandbox.js';
import { forward } from '../proxy/forward.js';
import { cameByName } from '../proxy/place.js';
import { bridge } from '../proxy/tunnel.js';
import { serveRoute } from '../serve-route.js';
import { requireUpgrade, upgraded } from '../upgrade.js';

export function portRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.ports, ({ params, request, signal }) =>
    liveSandbox(controller, request, params.id).guest.ports({ signal }),
  );
  serveRoute(app, ROUTES.tunnel, async ({ params, request, reply, signal }) => {
    const { guest } = liveSandbox(controller, request, params.id);
    requireUpgrade(request);
    const stream = await guest.connect(params.port, { signal });
    const leave = (): unknown => stream.destroy();
    signal.addEventListener('abort', leave);
    stream.once('close', () => signal.removeEventListener('abort', leave));
    try {
      void bridge(await upgraded(request, reply), stream);
    } catch (thrown) {
      leave();
      throw thrown;
    }
    return reply;
  });
  // In a scope of its own: its bodies are whatever the program in the guest takes.
  app.register((scope, _options, done) => {
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser('*', (_request, _payload, parsed) => parsed(null));
    serveRoute(scope, ROUTES.proxy, ({ params, request, reply, signal }) => {
      const { guest } = liveSandbox(controller, request, params.id);
      const [, prefix, path] = /^(\/v1\/sandboxes\/[^/]+\/proxy\/[^/?]+)(.*)$/s.exec(request.raw.url ?? '')!;
      const way = { port: params.port, prefix: cameByName(request.raw) ? undefined : prefix };
      return forward({ request, reply, guest, way, path: path!.replace(/^(?!\/)/, '/'), signal });
    });
    done();
  });
}

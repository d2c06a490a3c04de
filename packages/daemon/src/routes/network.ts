import type { Controller, SandboxRecord } from '@forkd/controller';
import { type NetworkInfo, ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import type { Outlets } from '../egress.js';
import { serveRoute } from '../serve-route.js';
import { visibleSandbox } from '../visible.js';

export function networkRoutes(app: FastifyInstance, controller: Controller, outlets: Outlets): void {
  const info = async ({ id, place, policy }: SandboxRecord): Promise<NetworkInfo> => {
    const rules = Object.entries(controller.store.rules(id)?.rules ?? {});
    return {
      wire: controller.wireOf(id),
      ...policy,
      rules: Object.fromEntries(rules.map(([host, { headers }]) => [host, { headers: Object.keys(headers) }])),
      ...outlets.egress.report(place),
      drops: await controller.networkDrops.of(place),
    };
  };
  serveRoute(app, ROUTES.getNetwork, ({ params, request }) =>
    info(visibleSandbox(controller, request.caller, params.id)),
  );
  serveRoute(app, ROUTES.changeNetwork, ({ params, body, request }) => {
    visibleSandbox(controller, request.caller, params.id);
    const { rules, ...policy } = body;
    const record = controller.changeNetwork(params.id, { policy, rules });
    outlets.refresh(params.id);
    return info(record);
  });
  serveRoute(app, ROUTES.networkAuthority, ({ reply }) => reply.type('text/plain').send(outlets.authority.certificate));
}

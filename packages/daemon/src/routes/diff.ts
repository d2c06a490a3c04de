import type { Controller } from '@forkd/controller';
import { ROUTES, SandboxId } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import type { Caller } from '../caller.js';
import { audited } from '../operation.js';
import { serveRoute } from '../serve-route.js';
import { noSandbox, visibleSandbox, visibleSnapshot } from '../visible.js';

export function diffRoutes(app: FastifyInstance, controller: Controller): void {
  serveRoute(app, ROUTES.diff, async ({ query: { a, b }, request, signal }) => {
    for (const name of [a, b]) await checkVisible(controller, request.caller, name);
    audited(request, { sandbox: [a, b].filter((name) => SandboxId.safeParse(name).success) });
    return controller.diff(a, b, request.caller.name, signal);
  });
}

async function checkVisible(controller: Controller, caller: Caller, name: string): Promise<void> {
  if (controller.store.sandbox(name)) return void visibleSandbox(controller, caller, name);
  try {
    await visibleSnapshot(controller, caller, name);
  } catch (thrown) {
    // Not another answer than where there is a sandbox that the caller may not see.
    throw SandboxId.safeParse(name).success ? noSandbox(name) : thrown;
  }
}

import type { Controller, Sandbox } from '@forkd/controller';
import type { FastifyRequest } from 'fastify';
import { visibleSandbox } from './visible.js';

/** The one way by which a request reaches into a sandbox. */
export function liveSandbox(controller: Controller, { caller }: FastifyRequest, id: string): Sandbox {
  visibleSandbox(controller, caller, id);
  return controller.runningSandbox(id);
}

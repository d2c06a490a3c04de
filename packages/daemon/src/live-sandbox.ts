import type { Controller, Sandbox } from '@forkd/controller';
import type { FastifyRequest } from 'fastify';
import { mayTouch, noSandbox } from './visible.js';

/** The one way by which a request reaches into a sandbox. */
export function liveSandbox(controller: Controller, { caller }: FastifyRequest, id: string): Sandbox {
  if (!mayTouch(caller, { owner: controller.ownerOf(id) })) throw noSandbox(id);
  return controller.runningSandbox(id);
}

import { ForkdError, ROUTES } from '@forkd/protocol';
import type { FastifyInstance } from 'fastify';
import { serveRoute } from '../serve-route.js';

/** Routes that need branching, which is not there yet: they say so, after checking the request. */
export function laterRoutes(app: FastifyInstance): void {
  const { branch, compactSnapshot, listWorkspaces, createWorkspace, getWorkspace } = ROUTES;
  const { deleteWorkspace, suspendWorkspace, resumeWorkspace } = ROUTES;
  const workspaces = [
    listWorkspaces,
    createWorkspace,
    getWorkspace,
    deleteWorkspace,
    suspendWorkspace,
    resumeWorkspace,
  ];
  for (const route of [branch, compactSnapshot, ...workspaces])
    serveRoute(app, route, () => {
      throw new ForkdError('not_implemented', `${route.method} ${route.path} is not there yet`);
    });
}

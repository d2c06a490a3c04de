import { randomUUID } from 'node:crypto';
import type { Controller } from '@forkd/controller';
import fastify, { type FastifyInstance } from 'fastify';
import { authenticate } from './authenticate.js';
import type { Config } from './config.js';
import { replyErrors } from './error-replies.js';
import { execRoutes } from './routes/exec.js';
import { laterRoutes } from './routes/later.js';
import { sandboxRoutes } from './routes/sandboxes.js';
import { snapshotRoutes } from './routes/snapshots.js';
import { systemRoutes } from './routes/system.js';

/** Standard input of a command is the largest honest thing in a body. */
const BODY_LIMIT = 16 << 20;

export function createApp(controller: Controller, config: Config, version: string): FastifyInstance {
  const app = fastify({
    logger: { level: process.env.FORKD_LOG ?? 'info' },
    bodyLimit: BODY_LIMIT,
    genReqId: () => randomUUID(),
    routerOptions: { ignoreTrailingSlash: true },
  });
  app.removeContentTypeParser('text/plain');
  replyErrors(app);
  authenticate(app, config.token);
  systemRoutes(app, controller, version);
  snapshotRoutes(app, controller, config.recipes);
  sandboxRoutes(app, controller);
  execRoutes(app, controller);
  laterRoutes(app);
  return app;
}

import { randomUUID } from 'node:crypto';
import type { Controller } from '@forkd/controller';
import fastify, { type FastifyInstance, LogController } from 'fastify';
import type { AuditLog } from './audit.js';
import { authenticate, authorize } from './authenticate.js';
import type { Config } from './config.js';
import type { Outlets } from './egress.js';
import { replyErrors } from './error-replies.js';
import { keepAnswers } from './idempotency.js';
import { limitConcurrency, limitRate } from './limits.js';
import { describeDaemon, observeEvent, observeRequest } from './metrics.js';
import { followOperations } from './operation.js';
import { rewriteUrl } from './proxy/place.js';
import { logRequest } from './request-log.js';
import { branchRoutes } from './routes/branch.js';
import { consoleRoutes } from './routes/console.js';
import { diffRoutes } from './routes/diff.js';
import { documentRoutes } from './routes/documents.js';
import { eventRoutes } from './routes/events.js';
import { execRoutes } from './routes/exec.js';
import { fileRoutes } from './routes/files.js';
import { lineageRoutes } from './routes/lineage.js';
import { networkRoutes } from './routes/network.js';
import { portRoutes } from './routes/ports.js';
import { promoteRoutes } from './routes/promote.js';
import { ptyRoutes } from './routes/pty.js';
import { retentionRoutes } from './routes/retention.js';
import { rollbackRoutes } from './routes/rollback.js';
import { sandboxRoutes } from './routes/sandboxes.js';
import { snapshotRoutes } from './routes/snapshots.js';
import { systemRoutes } from './routes/system.js';
import { workspaceRoutes } from './routes/workspaces.js';
import type { Tokens } from './tokens.js';
import { Tracer } from './tracing.js';

/** Standard input of a command is the largest honest thing in a body. */
const BODY_LIMIT = 16 << 20;

/** No name is as long as this; what is longer is for the schemas to refuse, as everything else is. */
const LONGEST_PARAM = 64 << 10;

/** What is beside the controller. */
export interface Edge {
  tokens: Tokens;
  audit: AuditLog;
  outlets: Outlets;
}

export function createApp(controller: Controller, config: Config, edge: Edge, version: string): FastifyInstance {
  const app = fastify({
    logger: { level: config.logLevel },
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: 'request_id' }),
    bodyLimit: BODY_LIMIT,
    genReqId: () => randomUUID(),
    return503OnClosing: false,
    rewriteUrl: (request) => rewriteUrl(request, config.domain),
    routerOptions: { ignoreTrailingSlash: true, maxParamLength: LONGEST_PARAM },
  });
  app.removeContentTypeParser('text/plain');
  describeDaemon(version, config.branchConcurrency);
  const followers = [observeRequest, logRequest, edge.audit.write.bind(edge.audit)];
  if (config.otlpEndpoint !== undefined) {
    const tracer = new Tracer(config.otlpEndpoint, version, app.log);
    app.addHook('onClose', () => tracer[Symbol.asyncDispose]());
    followers.push(tracer.trace.bind(tracer));
  }
  const stopCounting = controller.events.listen(observeEvent);
  const stopFollowing = edge.outlets.open(controller, app.log);
  // In this order: what is refused is recorded too, and nothing is spent on a request before it is known who makes it.
  followOperations(app, followers);
  replyErrors(app);
  limitConcurrency(app, config.maxConcurrent);
  authenticate(app, edge.tokens, config.domain);
  limitRate(app, config.rateLimit);
  authorize(app);
  keepAnswers(app, controller.store);
  app.addHook('onClose', async () => {
    stopCounting();
    stopFollowing();
  });
  // Any answer may carry bytes of a guest, also an error: nobody shall guess a type for them, or keep them.
  app.addHook('onRequest', async (_request, reply) => {
    reply.headers({ 'x-content-type-options': 'nosniff', 'cache-control': 'no-store' });
  });
  systemRoutes(app, controller, edge.outlets, version);
  snapshotRoutes(app, controller, config.recipes);
  sandboxRoutes(app, controller);
  execRoutes(app, controller);
  ptyRoutes(app, controller);
  portRoutes(app, controller);
  fileRoutes(app, controller);
  consoleRoutes(app, controller);
  eventRoutes(app, controller);
  lineageRoutes(app, controller);
  documentRoutes(app, config.recipes, version);
  branchRoutes(app, controller);
  rollbackRoutes(app, controller);
  retentionRoutes(app, controller);
  diffRoutes(app, controller);
  promoteRoutes(app, controller);
  workspaceRoutes(app, controller);
  networkRoutes(app, controller, edge.outlets);
  return app;
}

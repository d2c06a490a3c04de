import { type ErrorCode, ForkdError, type Route, SandboxId, Tag } from '@forkd/protocol';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { peerOf } from './peer.js';

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The row of the table this route serves. */
    route?: Route;
  }
  interface FastifyRequest {
    operation: Operation;
  }
  interface FastifyInstance {
    /** What is being answered now. */
    operations: Set<Operation>;
  }
}

/** Made once: it is the reason of every request that is over, and nobody looks where it came from. */
const OVER = new ForkdError('cancelled', 'the client is gone, or has been answered');

/** What a request was about: from its path, and what its handler adds with `audited`. */
export interface Subjects {
  sandbox?: string | string[];
  snapshot?: string;
}

/** One request until its answer has been sent or its client has gone: what logs, metrics and traces tell about. */
export class Operation {
  readonly startedAt = Date.now();
  readonly remote: string;
  outcome: 'ok' | ErrorCode = 'ok';
  /** What broke inside, for the log alone. */
  broke: unknown;
  subjects: Subjects;
  status = 0;
  seconds = 0;
  readonly #start = performance.now();
  readonly #gone = new AbortController();

  constructor(
    readonly request: FastifyRequest,
    readonly reply: FastifyReply,
  ) {
    this.remote = peerOf(request.raw.socket).address;
    this.subjects = fromPath(request);
  }

  /** Aborts when the client goes away, when it has been answered, and for a stream when the daemon is to end. */
  get signal(): AbortSignal {
    return this.#gone.signal;
  }

  get route(): Route | undefined {
    return this.request.routeOptions.config.route;
  }

  /** As the client asked for it, without the query. */
  get path(): string {
    return this.request.originalUrl.split('?', 1)[0]!;
  }

  /** Goes on until somebody ends it: nothing to wait for. */
  get endless(): boolean {
    return ['text/event-stream', 'websocket', '*/*'].includes(this.route?.replyType ?? '');
  }

  abort(): void {
    this.#gone.abort(OVER);
  }

  end(): void {
    const { headersSent, statusCode } = this.reply.raw;
    // A WebSocket is answered past the response, by the handler that took the connection over.
    const upgraded = this.reply.sent && (statusCode === 101 || this.route?.replyType === 'websocket');
    this.status = headersSent ? statusCode : upgraded ? 101 : 499;
    if (this.status === 499) this.outcome = 'cancelled';
    this.seconds = (performance.now() - this.#start) / 1000;
    this.abort();
  }
}

/** Tells each follower of each operation once, at its end. Its hook must be the first. */
export function followOperations(app: FastifyInstance, followers: ((operation: Operation) => void)[]): void {
  app.decorate('operations', new Set<Operation>());
  app.decorateRequest('operation', null as never);
  app.addHook('onRequest', async (request, reply) => {
    const operation = new Operation(request, reply);
    request.operation = operation;
    app.operations.add(operation);
    reply.header('x-request-id', request.id);
    // Not the framework's onResponse: that is not called when the client goes away before it is answered.
    reply.raw.once('close', () => {
      app.operations.delete(operation);
      operation.end();
      for (const follow of followers)
        try {
          follow(operation);
        } catch (thrown) {
          // Nobody above would catch it, and no record is worth the VMs.
          request.log.error({ err: thrown }, 'a request could not be recorded');
        }
    });
  });
}

/** For handlers: which things the request has made or touched. */
export function audited(request: FastifyRequest, subjects: Subjects): void {
  Object.assign(request.operation.subjects, subjects);
}

function fromPath({ params, routeOptions }: FastifyRequest): Subjects {
  if (routeOptions.config.route === undefined) return {};
  const { id, tag } = params as Record<string, unknown>;
  return {
    ...(SandboxId.safeParse(id).success && { sandbox: id as string }),
    ...(Tag.safeParse(tag).success && { snapshot: tag as string }),
  };
}

import { ForkdError, type Route } from '@forkd/protocol';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { z } from 'zod';

type Part<T> = T extends z.ZodType ? z.output<T> : undefined;

/** What a handler gets: every part of the request has passed its schema. */
export interface Input<R extends Route> {
  params: Part<R['params']>;
  query: Part<R['query']>;
  body: Part<R['body']>;
  request: FastifyRequest;
  reply: FastifyReply;
  /** Aborts when the client goes away, when it has been answered, and for a stream when the daemon is to end. */
  signal: AbortSignal;
}

/** Serves one row of the table of routes. */
export function serveRoute<R extends Route>(
  app: FastifyInstance,
  route: R,
  handle: (input: Input<R>) => unknown,
): void {
  const options = {
    method: route.passes ? app.supportedMethods : route.method,
    config: { route },
    handler: async (request: FastifyRequest, reply: FastifyReply) => {
      return handle({
        params: parsed('path', route.params, withoutRest(request.params as object)),
        query: parsed('query', route.query ?? undefined, request.query),
        body: parsed('body', route.body, request.body),
        request,
        reply,
        signal: request.operation.signal,
      } as Input<R>);
    },
  };
  app.route({ ...options, url: route.path });
  // To the router, which ignores a slash at the end, a path ends before the last one.
  if (route.path.endsWith('/*')) app.route({ ...options, url: route.path.slice(0, -2) });
}

/** What a `*` in a path stands for is taken from the URL as it was written. */
function withoutRest({ '*': _, ...params }: { '*'?: string }): object {
  return params;
}

function parsed(place: string, schema: z.ZodType | undefined, value: unknown): unknown {
  if (!schema) return undefined;
  const result = schema.safeParse(value ?? {});
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  const field = [place, ...(issue?.path ?? [])].map(String).join('.').slice(0, 200);
  throw new ForkdError('invalid_request', `${field}: ${issue?.message ?? 'not valid'}`.slice(0, 500));
}

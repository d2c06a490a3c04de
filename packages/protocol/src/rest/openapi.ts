import { z } from 'zod';
import { ErrorBody } from './fields.js';
import { ROUTES, type Route, roleOf } from './routes.js';

/** The API as an OpenAPI 3.1 document, made from the table of routes. */
export function openapi(version: string): object {
  const paths: Record<string, Record<string, object>> = {};
  for (const [operationId, route] of Object.entries<Route>(ROUTES)) {
    const path = route.path.replace(/:([a-z_]+)/g, '{$1}').replace('*', '{path}');
    paths[path] ??= {};
    paths[path][route.method.toLowerCase()] = operation(operationId, route);
  }
  return {
    openapi: '3.1.0',
    info: { title: 'forkd', version, license: { name: 'Apache-2.0', identifier: 'Apache-2.0' } },
    paths,
    components: {
      schemas: { Error: schema(ErrorBody, 'output') },
      securitySchemes: { token: { type: 'http', scheme: 'bearer' } },
    },
    security: [{ token: [] }],
  };
}

function operation(operationId: string, route: Route): object {
  const { summary, params, query, body, bodyType, replyType = 'application/json', streams, replies } = route;
  const parameters = [
    ...fields('path', params),
    ...(route.passes ? [REST] : []),
    ...fields('query', query),
    ...(route.creates ? [IDEMPOTENCY_KEY] : []),
  ];
  const answers = Object.entries(replies).map(([status, reply]) => {
    if (!reply) return [status, { description: summary }];
    const streamed = STREAMS.map((type) => [type, { schema: streams && schema(streams, 'output') }]);
    const content = {
      [replyType]: { schema: schema(reply, 'output') },
      ...(streams && Object.fromEntries(streamed)),
    };
    return [status, { description: summary, content }];
  });
  const failure = { description: 'Anything that went wrong', content: { 'application/json': { schema: ERROR } } };
  return {
    operationId,
    summary,
    ...(parameters.length > 0 && { parameters }),
    ...(roleOf(route) === 'open' && { security: [] }),
    'x-forkd-role': roleOf(route),
    ...(body && {
      requestBody: { required: true, content: { 'application/json': { schema: schema(body, 'input') } } },
    }),
    ...(bodyType && { requestBody: { required: true, content: { [bodyType]: { schema: BYTES } } } }),
    responses: { ...Object.fromEntries(answers), default: failure },
  };
}

const STREAMS = ['application/x-ndjson', 'text/event-stream'];
const BYTES = { type: 'string', format: 'binary' };

const REST = { name: 'path', in: 'path', required: true, schema: { type: 'string' } };

const IDEMPOTENCY_KEY = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  schema: { type: 'string', minLength: 1, maxLength: 200 },
};

const ERROR = { $ref: '#/components/schemas/Error' };

function schema(type: z.ZodType, io: 'input' | 'output'): object {
  const { $schema, ...json } = z.toJSONSchema(type, { io, unrepresentable: 'any', reused: 'inline' });
  return json;
}

function fields(place: 'path' | 'query', type: z.ZodType | undefined): object[] {
  if (!type) return [];
  const { properties = {}, required = [] } = schema(type, 'input') as {
    properties?: Record<string, object>;
    required?: string[];
  };
  return Object.entries(properties).map(([name, property]) => {
    return { name, in: place, required: required.includes(name), schema: property };
  });
}

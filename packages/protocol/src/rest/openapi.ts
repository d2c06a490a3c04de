import { z } from 'zod';
import { ErrorBody } from './fields.js';
import { ROUTES, type Route } from './routes.js';

/** The API as an OpenAPI 3.1 document, made from the table of routes. */
export function openapi(version: string): object {
  const paths: Record<string, Record<string, object>> = {};
  for (const [operationId, route] of Object.entries<Route>(ROUTES)) {
    const path = route.path.replace(/:([a-z_]+)/g, '{$1}');
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

function operation(operationId: string, { summary, params, query, body, replies }: Route): object {
  const parameters = [...fields('path', params), ...fields('query', query)];
  const answers = Object.entries(replies).map(([status, reply]) => {
    const content = reply && { content: { 'application/json': { schema: schema(reply, 'output') } } };
    return [status, { description: summary, ...content }];
  });
  const failure = { description: 'Anything that went wrong', content: { 'application/json': { schema: ERROR } } };
  return {
    operationId,
    summary,
    ...(parameters.length > 0 && { parameters }),
    ...(body && {
      requestBody: { required: true, content: { 'application/json': { schema: schema(body, 'input') } } },
    }),
    responses: { ...Object.fromEntries(answers), default: failure },
  };
}

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

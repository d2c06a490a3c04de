import { createHash } from 'node:crypto';

/** The parts of our own OpenAPI document that the page shows. */
interface Document {
  info: { title: string; version: string };
  paths: Record<string, Record<string, Operation>>;
}

interface Operation {
  operationId: string;
  summary: string;
  'x-forkd-role': string;
  parameters?: { name: string; in: string; required: boolean; schema: Schema }[];
  requestBody?: { content: Content };
  responses: Record<string, { description: string; content?: Content }>;
}

type Content = Record<string, { schema: Schema }>;

interface Schema {
  $ref?: string;
  type?: string | string[];
  format?: string;
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  pattern?: string;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  anyOf?: Schema[];
  oneOf?: Schema[];
}

const STYLE = `
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font: 13px ui-monospace, monospace; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8888; }
h3 { margin: 2rem 0 0.25rem; }
h3 code { font-size: 15px; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0; }
caption { text-align: left; font-weight: 600; }
th, td { text-align: left; vertical-align: top; padding: 0.15rem 0.75rem 0.15rem 0; border-bottom: 1px solid #8884; overflow-wrap: anywhere; }
`;

/** Nothing may be loaded, run, sent or framed; only the one style sheet of the page itself applies. */
const POLICY = [
  "default-src 'none'",
  `style-src 'sha256-${createHash('sha256').update(STYLE).digest('base64')}'`,
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

/** The OpenAPI document as one page that needs nothing but a browser. */
export function docsPage(document: object): { html: string; policy: string } {
  const { info, paths } = document as Document;
  const groups = new Map<string, string[]>();
  for (const [path, operations] of Object.entries(paths))
    for (const [method, operation] of Object.entries(operations)) {
      const group = /^\/v1\/([a-z]+)/.exec(path)?.[1] ?? 'daemon';
      groups.set(group, [...(groups.get(group) ?? []), route(method.toUpperCase(), path, operation)]);
    }
  const contents = [...groups.keys()].map((group) => `<a href="#${group}">${group}</a>`).join(' · ');
  const sections = [...groups].map(([group, routes]) => `<h2 id="${group}">${group}</h2>\n${routes.join('\n')}`);
  const title = `${escaped(info.title)} API ${escaped(info.version)}`;
  const html = `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>${title}</title><style>${STYLE}</style></head>
<body>
<h1>${title}</h1>
<p>The same for programs: <a href="/openapi.json">openapi.json</a>. Every answer from 400 on is
<code>{"error", "code", "hint", "request_id"}</code>. Send the token as <code>Authorization: Bearer TOKEN</code>.</p>
<p>${contents}</p>
${sections.join('\n')}
</body>
</html>
`;
  return { html, policy: POLICY };
}

function route(method: string, path: string, operation: Operation): string {
  const { operationId, summary, parameters = [], requestBody, responses } = operation;
  const given = parameters.map(({ name, in: place, required, schema }) => [name, place, describe(schema, required)]);
  const bodies = Object.entries(requestBody?.content ?? {}).map(([type, { schema }]) =>
    schema.properties ? table(`Body: ${type}`, fields(schema)) : `<p>Body: ${escaped(type)}</p>`,
  );
  const replies = Object.entries(responses)
    .filter(([status]) => status !== 'default')
    .flatMap(([status, { content }]) =>
      Object.entries(content ?? { 'no body': { schema: {} } }).map(([type, { schema }]) => {
        const shape = schema.items?.properties ? schema.items : schema;
        const caption = `${status}: ${type}${shape === schema ? '' : ', a list of'}`;
        return shape.properties ? table(caption, fields(shape)) : `<p>${escaped(caption)} ${variants(shape)}</p>`;
      }),
    );
  return [
    `<h3 id="${escaped(operationId)}"><code>${method} ${escaped(path)}</code></h3>`,
    `<p>${escaped(summary)}. Role: <code>${escaped(operation['x-forkd-role'])}</code></p>`,
    given.length > 0 ? table('Parameters', given) : '',
    ...bodies,
    ...replies,
  ].join('\n');
}

function fields({ properties = {}, required = [] }: Schema): string[][] {
  return Object.entries(properties).map(([name, schema]) => [name, describe(schema, required.includes(name))]);
}

function table(caption: string, rows: string[][]): string {
  const cells = rows.map(([name, ...rest]) => {
    const others = rest.map((cell) => `<td>${escaped(cell)}</td>`).join('');
    return `<tr><th scope="row"><code>${escaped(name ?? '')}</code></th>${others}</tr>`;
  });
  return `<table><caption>${escaped(caption)}</caption>\n${cells.join('\n')}\n</table>`;
}

function variants(schema: Schema): string {
  const shapes = (schema.anyOf ?? schema.oneOf ?? []).filter(({ properties }) => properties);
  return shapes.map((shape) => table('either', fields(shape))).join('\n');
}

/** A schema in words, as far as a caller needs them. */
function describe(schema: Schema, required: boolean): string {
  const { minimum, maximum, maxLength, pattern } = schema;
  return [
    kind(schema),
    required ? 'required' : '',
    minimum === undefined && maximum === undefined ? '' : `${minimum ?? ''} to ${maximum ?? ''}`,
    maxLength === undefined ? '' : `at most ${maxLength} characters`,
    pattern === undefined ? '' : `matches ${pattern}`,
    schema.default === undefined ? '' : `default ${JSON.stringify(schema.default)}`,
  ]
    .filter(Boolean)
    .join(', ');
}

function kind({ type, enum: values, const: value, items, anyOf, oneOf, $ref }: Schema): string {
  if (values) return values.map((one) => JSON.stringify(one)).join(' | ');
  if (value !== undefined) return JSON.stringify(value);
  if (type === 'array') return items ? `list of ${kind(items)}` : 'list';
  const choices = anyOf ?? oneOf;
  if (choices) return [...new Set(choices.map(kind))].join(' or ');
  return $ref?.split('/').at(-1) ?? [type ?? 'anything'].flat().join(' or ');
}

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

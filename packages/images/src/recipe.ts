import { z } from 'zod';

/** A table of the recipe. A field that is not in it is an error that names the ones that are: typing errors show at once. */
function section<Shape extends z.ZodRawShape>(shape: Shape) {
  const allowed = Object.keys(shape).join(', ');
  return z.strictObject(shape, {
    error: (issue) =>
      issue.code === 'unrecognized_keys'
        ? `unknown field ${issue.keys.map((key) => JSON.stringify(key)).join(', ')}; allowed here: ${allowed}`
        : undefined,
  });
}

function text(longest: number) {
  return z
    .string()
    .max(longest)
    .refine((value) => !value.includes('\0'), 'must not contain a NUL character');
}

function whole(least: number, most: number) {
  return z.number().int().min(least).max(most);
}

const Package = z.string().regex(/^[a-z0-9][a-z0-9+.-]{1,127}$/, 'not the name of a Debian package');
const Suite = z.string().regex(/^[a-z][a-z0-9-]{1,31}$/, 'not the name of a Debian release');
const Seconds = whole(1, 86_400);
const Code = text(256 * 1024).min(1);

const GuestPath = text(1024)
  .regex(/^(\/[^/]+)+$/, 'must be an absolute path of a file, without "//" and without "/" at its end')
  .refine((path) => !/\/\.\.?(\/|$)/.test(path), 'must not contain "." or ".." as a part')
  .refine((path) => !/^\/(proc|sys|dev|run)\//.test(path), 'is hidden by a mount while the guest runs');

const Base = section({
  debian: Suite.optional(),
  directory: text(4096).min(1).optional(),
  packages: z.array(Package).max(1000).default([]),
})
  .refine(
    ({ debian, directory }) => (debian === undefined) !== (directory === undefined),
    'needs either "debian" or "directory"',
  )
  .refine(({ debian, packages }) => debian !== undefined || packages.length === 0, {
    path: ['packages'],
    message: 'can only be installed on top of base.debian',
  });

const RecipeFile = section({
  path: GuestPath,
  content: text(1024 * 1024).optional(),
  source: text(4096).min(1).optional(),
  mode: z
    .string()
    .regex(/^0?[0-7]{3,4}$/, 'must be an octal number such as "0644"')
    .default('0644'),
}).refine(
  ({ content, source }) => (content === undefined) !== (source === undefined),
  'needs either "content" or "source"',
);

const Environment = z
  .record(
    z.string().regex(/^[A-Za-z_][A-Za-z0-9_]{0,255}$/, 'not the name of an environment variable'),
    text(32 * 1024),
  )
  .refine((env) => Object.keys(env).length <= 256, 'has more than 256 variables');

const Warmup = section({
  kernel: z.enum(['python', 'node']).optional(),
  code: Code.optional(),
  command: Code.optional(),
  timeout_secs: Seconds.default(120),
});

const Ready = section({
  eval: Code.optional(),
  command: Code.optional(),
  port: whole(1, 65_535).optional(),
  timeout_secs: Seconds.default(60),
});

/** How to build a snapshot and warm it, as written in `recipes/NAME/recipe.toml`. */
export const Recipe = section({
  description: text(500).default(''),
  memory_mib: whole(64, 65_536).default(256),
  vcpus: whole(1, 8).default(1),
  disk_mib: whole(16, 1_048_576).default(2048),
  trust_egress_ca: z.boolean().optional(),
  base: Base,
  files: z.array(RecipeFile).max(1000).default([]),
  env: Environment.default({}),
  warmup: Warmup.prefault({}),
  ready: Ready.prefault({}),
}).check(({ value, issues }) => {
  const report = (path: PropertyKey[], message: string) => issues.push({ code: 'custom', path, message, input: value });
  const { files, warmup, ready } = value;
  const first = new Map(files.map(({ path }, index) => [path, index]).reverse() as [string, number][]);
  for (const [index, { path }] of files.entries())
    if (first.get(path) !== index) report(['files', index, 'path'], `${path} is given twice`);
  if (warmup.kernel === undefined && warmup.code !== undefined)
    report(['warmup', 'code'], 'needs "kernel" to say which language it is in');
  if (warmup.kernel === undefined && ready.eval !== undefined)
    report(['ready', 'eval'], 'needs warmup.kernel to say which language it is in');
});

export type Recipe = z.infer<typeof Recipe>;
export type RecipeFile = z.infer<typeof RecipeFile>;

import { createHash, timingSafeEqual } from 'node:crypto';
import { closeSync, fstatSync, openSync, readFileSync } from 'node:fs';
import type { Quota } from '@forkd/controller';
import { ForkdError, NetworkPreset, Tag, whole } from '@forkd/protocol';
import { parse, TomlError } from 'smol-toml';
import { z } from 'zod';
import { type Caller, LOCAL } from './caller.js';
import type { Config } from './config.js';

const SHORTEST = 16;
const LARGEST_FILE = 1 << 20;

const Entry = z
  .strictObject({
    name: Tag.refine((name) => name !== LOCAL.name, `the name "${LOCAL.name}" is taken`),
    role: z.enum(['admin', 'user', 'read']),
    token: z.string().optional(),
    token_sha256: z
      .string()
      .regex(/^[0-9a-fA-F]{64}$/, 'not 64 hexadecimal digits')
      .optional(),
    // What may exist of its name at one time, and how fast it may come.
    max_sandboxes: whole(0, 1_000_000).optional(),
    max_memory_mib: whole(0, 1 << 30).optional(),
    max_cpus: z.number().min(0).max(1_000_000).optional(),
    max_disk_mib: whole(0, 1 << 30).optional(),
    spawns_per_minute: whole(1, 1_000_000).optional(),
    // What its sandboxes may reach at most, and by how many connections at one time.
    network: NetworkPreset.optional(),
    max_connections: whole(0, 1_000_000).optional(),
  })
  .refine(
    ({ token, token_sha256 }) => (token === undefined) !== (token_sha256 === undefined),
    'give either token or token_sha256',
  );
const TokensFile = z.strictObject({ token: z.array(Entry).min(1).max(1000) });

type Reach = Pick<z.infer<typeof Entry>, 'network' | 'max_connections'>;

interface Known {
  caller: Caller;
  quota?: Quota;
  reach?: Reach;
  digest: Buffer;
}

/** Who may call. Only digests are kept. */
export class Tokens {
  readonly #files: Pick<Config, 'tokenFile' | 'tokensFile'>;
  #known: Known[];

  constructor(files: Pick<Config, 'tokenFile' | 'tokensFile'>) {
    this.#files = files;
    this.#known = load(files);
  }

  /** Whether anybody is asked at all. */
  get required(): boolean {
    return this.#known.length > 0;
  }

  /** Takes as long for a wrong token as for a right one, whichever it is: digests have one length and all are compared. */
  find(presented: string): Caller | undefined {
    const digest = sha256(presented);
    let found: Caller | undefined;
    for (const known of this.#known) if (timingSafeEqual(known.digest, digest)) found = known.caller;
    return found;
  }

  /** Of what belongs to a name. */
  quotaOf(owner: string): Quota | undefined {
    return this.#of(owner)?.quota;
  }

  /** Of the sandboxes that belong to a name. */
  reachOf(owner: string): Reach | undefined {
    return this.#of(owner)?.reach;
  }

  #of(owner: string): Known | undefined {
    return this.#known.find(({ caller }) => caller.name === owner);
  }

  /** Throws, and keeps what it had, when a file is not good. */
  reload(): void {
    this.#known = load(this.#files);
  }
}

function load({ tokenFile, tokensFile }: Pick<Config, 'tokenFile' | 'tokensFile'>): Known[] {
  const known = [
    ...(tokenFile === undefined ? [] : [readTokenFile(tokenFile)]),
    ...(tokensFile === undefined ? [] : readTokensFile(tokensFile)),
  ];
  const names = known.map(({ caller }) => caller.name);
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  if (twice !== undefined) throw invalid(`two tokens have the name ${twice}`, 'Give each token a name of its own.');
  if (new Set(known.map(({ digest }) => digest.toString('hex'))).size < known.length)
    throw invalid('two names have the same token', 'Give each name a token of its own.');
  return known;
}

function readTokenFile(file: string): Known {
  return {
    caller: { name: 'default', role: 'admin' },
    digest: sha256(checkToken('the token', read(file).text.trim())),
  };
}

function readTokensFile(file: string): Known[] {
  const { text, mode } = read(file);
  if ((mode & 0o077) !== 0) throw invalid(`others can read the tokens file ${file}`, `Run: chmod 600 ${file}`);
  let table: unknown;
  try {
    table = parse(text);
  } catch (thrown) {
    // The parser's message quotes the line, and a token may be on it.
    const line = thrown instanceof TomlError ? ` (line ${thrown.line})` : '';
    throw invalid(`the tokens file ${file} is not TOML${line}`, EXAMPLE);
  }
  const result = TokensFile.safeParse(table);
  if (!result.success) {
    const [issue] = result.error.issues;
    throw invalid(`the tokens file ${file}: ${issue?.path.join('.')}: ${issue?.message}`, EXAMPLE);
  }
  return result.data.token.map(({ name, role, token, token_sha256, network, max_connections, ...quota }) => ({
    caller: { name, role },
    quota,
    reach: { network, max_connections },
    digest: token === undefined ? Buffer.from(token_sha256!, 'hex') : sha256(checkToken(`the token of ${name}`, token)),
  }));
}

const EXAMPLE = 'For each token: [[token]], then name = "ci", role = "user", token = "…" (or token_sha256).';

/** forkd's rules: long enough, and not the placeholder of a manifest that somebody forgot to fill in. */
function checkToken(what: string, token: string): string {
  if (/^(REPLACE_ME|CHANGE_ME)/i.test(token))
    throw invalid(`${what} is a placeholder`, 'Write a random one into the file: openssl rand -hex 32');
  // What is not visible ASCII cannot be sent in a header as it is.
  if (token.length < SHORTEST || !/^[\x21-\x7e]+$/.test(token))
    throw invalid(
      `${what} must have at least ${SHORTEST} visible ASCII characters and no spaces`,
      'For example: openssl rand -hex 32',
    );
  return token;
}

function read(file: string): { text: string; mode: number } {
  let handle: number | undefined;
  try {
    handle = openSync(file, 'r');
    const { mode, size } = fstatSync(handle);
    if (size > LARGEST_FILE) throw new Error('too large');
    return { text: readFileSync(handle, 'utf8'), mode };
  } catch {
    throw invalid(`cannot read the token file ${file}`, 'Check its path, size and permissions.');
  } finally {
    if (handle !== undefined) closeSync(handle);
  }
}

function sha256(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

function invalid(message: string, hint: string): ForkdError {
  return new ForkdError('invalid_request', message, { hint });
}

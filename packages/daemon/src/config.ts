import { readFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { parseArgs } from 'node:util';
import { ForkdError } from '@forkd/protocol';

export interface Config {
  host: string;
  port: number;
  data: string;
  recipes: string;
  /** `undefined`: nobody is asked who they are, which is only allowed on loopback. */
  token: string | undefined;
}

const TOKEN_BYTES = 16;

/** Flags beat the environment, the environment beats the defaults. */
export function readConfig(argv: string[], env: NodeJS.ProcessEnv, recipes: string): Config {
  const text = { type: 'string' } as const;
  const options = { bind: text, data: text, recipes: text, 'token-file': text };
  let flags: { [Name in keyof typeof options]?: string };
  try {
    ({ values: flags } = parseArgs({ args: argv, options }));
  } catch (cause) {
    throw invalid((cause as Error).message, 'Known: --bind HOST:PORT --data DIR --recipes DIR --token-file FILE');
  }
  const { host, port } = parseBind(flags.bind ?? env.FORKD_BIND ?? '127.0.0.1:8889');
  const tokenFile = flags['token-file'] ?? env.FORKD_TOKEN_FILE;
  const token = tokenFile === undefined ? undefined : readToken(tokenFile);
  if (token === undefined && !isLoopback(host))
    throw invalid(`refusing to listen on ${host} without a token`, 'Give --token-file, or bind a loopback address.');
  return Object.freeze({
    host,
    port,
    data: flags.data ?? env.FORKD_DATA ?? '/var/lib/forkd',
    recipes: flags.recipes ?? env.FORKD_RECIPES ?? recipes,
    token,
  });
}

function parseBind(bind: string): { host: string; port: number } {
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]]+)):(\d{1,5})$/.exec(bind);
  const [host, port] = [match?.[1] ?? match?.[2] ?? '', Number(match?.[3])];
  if (!match || isIP(host) === 0 || port > 65_535)
    throw invalid(`cannot bind ${JSON.stringify(bind)}`, 'Give ADDRESS:PORT, such as 127.0.0.1:8889 or [::1]:8889.');
  return { host, port };
}

function isLoopback(host: string): boolean {
  return host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host);
}

/** The rules of forkd: long enough, and not the placeholder of a manifest that somebody forgot to fill in. */
export function readToken(file: string): string {
  let token: string;
  try {
    token = readFileSync(file, 'utf8').trim();
  } catch {
    throw invalid(`cannot read the token file ${file}`, 'Check its path and permissions.');
  }
  if (/^(REPLACE_ME|CHANGE_ME)/i.test(token))
    throw invalid('the token is a placeholder', 'Write a random one into the file.');
  if (Buffer.byteLength(token) < TOKEN_BYTES || /\s/.test(token))
    throw invalid(
      `the token must have at least ${TOKEN_BYTES} bytes and no spaces`,
      'For example: openssl rand -hex 32',
    );
  return token;
}

function invalid(message: string, hint: string): ForkdError {
  return new ForkdError('invalid_request', message, { hint });
}

import { isIP } from 'node:net';
import { join, resolve } from 'node:path';
import { type SandboxLimits, wiringOf } from '@forkd/controller';
import type { Uids } from '@forkd/host';
import { ForkdError, LimitFields, type NetworkPolicy, PolicyText, whole } from '@forkd/protocol';
import { z } from 'zod';
import type { FlagName, Flags } from './flags.js';

export interface Config {
  /** `undefined`: no TCP. */
  tcp: { host: string; port: number; tls: { cert: string; key: string } | undefined } | undefined;
  /** Ports of sandboxes are reached as `PORT-ID.DOMAIN`; `undefined`: they have no names. */
  domain: string | undefined;
  /** Path of the Unix socket. */
  socket: string | undefined;
  /** `undefined` both: nobody is asked who they are, which is only allowed on loopback. */
  tokenFile: string | undefined;
  tokensFile: string | undefined;
  data: string;
  /** The database file. */
  state: string;
  snapshotRoot: string;
  recipes: string;
  branchConcurrency: number;
  /** What is kept of the branches; 0: all. */
  retention: { keepLast: number; maxBytes: number };
  /** How often what is not to be kept is removed. */
  gcMs: number;
  /** Of sandboxes that come without their own. */
  defaultLimits: SandboxLimits;
  /** Whether a sandbox may run without a limit that this host cannot apply. */
  allowUnlimited: boolean;
  overcommit: number;
  network: { mode: (typeof NETWORKS)[number]; range: string };
  /** Requests a second for each token; 0: no limit. */
  rateLimit: number;
  maxConcurrent: number;
  auditLog: string;
  /** 0: never rotated. */
  auditMaxBytes: number;
  /** Whom VMMs run as; `none`: as root, in no jail. */
  jail: Uids | 'none';
  otlpEndpoint: string | undefined;
  logLevel: string;
  egress: {
    /** Of sandboxes of which nobody says another one. */
    policy: NetworkPolicy;
    /** Empty: those of the host. */
    dns: string[];
    /** A file of certificates. */
    ca: string | undefined;
  };
}

const DefaultLimits = z.strictObject({ ...LimitFields, memory_limit_mib: whole(16, 1 << 20).optional() });

const NETWORKS = ['auto', 'tap', 'user', 'none'] as const;
const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'];

/** Checks everything that can be checked without opening a file. */
export function readConfig(flags: Flags, recipes: string): Config {
  const data = resolve(flags('data')!);
  const socket = flags('socket');
  const tcp = readTcp(flags);
  if (!tcp && socket === undefined)
    throw invalid('there is nothing to listen on', 'Give --socket, or --bind an address.');
  const state = flags('state') ?? join(data, 'state.db');
  if (state.endsWith('.json'))
    throw invalid('--state is a JSON file', 'The state is a database now: name a new file, such as state.db.');
  return Object.freeze({
    tcp,
    domain: readDomain(flags('domain')!),
    socket: socket === undefined ? undefined : checkSocket(resolve(socket)),
    tokenFile: flags('token-file'),
    tokensFile: flags('tokens-file'),
    data,
    state: resolve(state),
    snapshotRoot: resolve(flags('snapshot-root') ?? join(data, 'snapshots')),
    recipes: flags('recipes') ?? recipes,
    branchConcurrency: number(flags, 'branch-concurrency', 1, 1024),
    retention: {
      keepLast: number(flags, 'keep-last', 0, 1_000_000),
      maxBytes: number(flags, 'branch-disk-mb', 0, 1 << 29) * 2 ** 20,
    },
    gcMs: number(flags, 'gc-secs', 1, 86_400) * 1000,
    defaultLimits: readLimits(flags('default-limits')!),
    allowUnlimited: oneOf('allow-unlimited', ['true', 'false'], flags('allow-unlimited')!) === 'true',
    overcommit: decimal(flags, 'overcommit', 1000),
    network: { mode: oneOf('network', NETWORKS, flags('network')!), range: checkRange(flags('network-range')!) },
    rateLimit: number(flags, 'rate-limit', 0, 1_000_000),
    maxConcurrent: number(flags, 'max-concurrent', 1, 100_000),
    auditLog: resolve(flags('audit-log') ?? join(data, 'audit.log')),
    auditMaxBytes: number(flags, 'audit-max-mb', 0, 1 << 20) * 2 ** 20,
    jail: readJail(flags),
    otlpEndpoint: readEndpoint(flags('otlp-endpoint')),
    logLevel: oneOf('log-level', LOG_LEVELS, flags('log-level')!),
    egress: { policy: readPolicy(flags('network-policy')!), dns: readServers(flags('dns')), ca: flags('egress-ca') },
  });
}

function readJail(flags: Flags): Config['jail'] {
  const none = flags('no-jail');
  if (none !== undefined && none !== '1' && none !== '0')
    throw invalid('FORKD_NO_JAIL is neither 1 nor 0', 'Set it to 1, or better: leave it out.');
  if (none === '1') return 'none';
  const match = /^(\d{4,10})-(\d{4,10})$/.exec(flags('jail-uids')!);
  const [first, last] = [Number(match?.[1]), Number(match?.[2])];
  // Those below belong to the host, the last ones have a meaning to the kernel.
  if (!match || first < 1000 || last <= first || last > 4_294_967_000)
    throw invalid('--jail-uids is no range of users', 'Give FIRST-LAST from 1000 on, such as 300000-365535.');
  return { first, last };
}

function readTcp(flags: Flags): Config['tcp'] {
  const [cert, key] = [flags('tls-cert'), flags('tls-key')];
  if ((cert === undefined) !== (key === undefined))
    throw invalid('a certificate and its key belong together', 'Give both --tls-cert and --tls-key, or neither.');
  const bind = flags('bind')!;
  if (bind === 'none') return undefined;
  const address = parseBind(bind);
  if (flags('token-file') === undefined && flags('tokens-file') === undefined && !isLoopback(address.host))
    throw invalid(
      `refusing to listen on ${address.host} without a token`,
      'Give --token-file or --tokens-file, or bind a loopback address.',
    );
  return { ...address, tls: cert === undefined || key === undefined ? undefined : { cert, key } };
}

function parseBind(bind: string): { host: string; port: number } {
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]]+)):(\d{1,5})$/.exec(bind);
  const [host, port] = [match?.[1] ?? match?.[2] ?? '', Number(match?.[3])];
  if (!match || isIP(host) === 0 || port > 65_535)
    throw invalid(
      `cannot bind ${JSON.stringify(bind)}`,
      'Give ADDRESS:PORT, such as 127.0.0.1:8889 or [::1]:8889, or "none".',
    );
  return { host, port };
}

export function isLoopback(host: string): boolean {
  return host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host);
}

function checkSocket(path: string): string {
  // The kernel's sun_path has 108 bytes, one of which ends it.
  if (Buffer.byteLength(path) > 107)
    throw invalid('the path of the socket is longer than 107 bytes', 'Choose a shorter one, such as /run/forkd.sock.');
  return path;
}

function readDomain(text: string): string | undefined {
  const name = text.toLowerCase();
  if (name === 'none') return undefined;
  const label = '[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?';
  if (name.length > 200 || !new RegExp(`^${label}(\\.${label})*$`).test(name) || isIP(name) !== 0)
    throw invalid('--domain is not the name of a domain', 'For example: sandboxes.example.com, or "none".');
  return name;
}

function checkRange(range: string): string {
  wiringOf(range);
  return range;
}

function readPolicy(text: string): NetworkPolicy {
  const policy = PolicyText.safeParse(text);
  if (policy.success) return policy.data;
  throw invalid(
    `--network-policy: ${policy.error.issues[0]?.message}`,
    'For example: none, or "internet !203.0.113.0/24 10.0.0.5:443".',
  );
}

function readServers(text: string | undefined): string[] {
  const servers = (text ?? '').split(',').filter(Boolean);
  const wrong = servers.find((server) => isIP(server.replace(/^\[(.*)\](:\d+)?$|^([\d.]+):\d+$/, '$1$3')) === 0);
  if (wrong === undefined) return servers;
  throw invalid(
    `--dns: ${JSON.stringify(wrong)} is no address`,
    'Give addresses joined by commas: 192.0.2.53,[2001:db8::53]:5353',
  );
}

/** The URL is not repeated in the error: it may hold a password. */
function readEndpoint(text: string | undefined): string | undefined {
  if (text === undefined) return undefined;
  if (!URL.canParse(text) || !/^https?:$/.test(new URL(text).protocol))
    throw invalid('the OTLP endpoint is not an http or https URL', 'For example: http://127.0.0.1:4318');
  return text;
}

function number(flags: Flags, name: FlagName, least: number, most: number): number {
  const text = flags(name)!;
  const value = Number(text);
  if (!/^\d{1,9}$/.test(text) || value < least || value > most)
    throw invalid(`--${name} is not a whole number from ${least} to ${most}`, `Correct --${name} or leave it out.`);
  return value;
}

function decimal(flags: Flags, name: FlagName, most: number): number {
  const text = flags(name)!;
  if (!/^\d{1,4}(\.\d{1,3})?$/.test(text) || Number(text) > most)
    throw invalid(`--${name} is not a number from 0 to ${most}`, `Correct --${name} or leave it out.`);
  return Number(text);
}

/** `NAME=NUMBER,…`, by the names of a spawn. */
function readLimits(text: string): SandboxLimits {
  const pairs = text === 'none' ? [] : text.split(',').map((pair) => /^([a-z_]+)=([0-9.]+)$/.exec(pair));
  const parsed = DefaultLimits.safeParse(Object.fromEntries(pairs.map((pair) => [pair?.[1] ?? '', Number(pair?.[2])])));
  if (parsed.success) return parsed.data;
  throw invalid(
    '--default-limits are not limits of a sandbox',
    `Give NAME=NUMBER, several joined by commas, or "none". Names: ${Object.keys(DefaultLimits.shape).join(', ')}.`,
  );
}

function oneOf<T extends string>(name: FlagName, values: readonly T[], value: string): T {
  const found = values.find((known) => known === value);
  if (found === undefined) throw invalid(`--${name} is none of ${values.join(', ')}`, `Correct --${name}.`);
  return found;
}

function invalid(message: string, hint: string): ForkdError {
  return new ForkdError('invalid_request', message, { hint });
}

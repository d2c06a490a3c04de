import { parseArgs } from 'node:util';
import { ForkdError } from '@forkd/protocol';

interface Flag {
  /** Without it there is nothing to say but yes: no value, and the variable is set to 1. */
  takes?: string;
  env: string;
  help: string;
  /** Only where it is the same on every host: `--help` prints it, and must not print anything of the environment. */
  fallback?: string;
}

/** forkd's flags with its names and variables first, then ours. */
export const FLAGS = {
  bind: {
    takes: 'ADDRESS:PORT',
    env: 'FORKD_BIND',
    help: 'where to listen for TCP; "none": nowhere',
    fallback: '127.0.0.1:8889',
  },
  state: { takes: 'FILE', env: 'FORKD_STATE', help: 'the database (default: state.db in the data directory)' },
  'snapshot-root': {
    takes: 'DIR',
    env: 'FORKD_SNAPSHOT_ROOT',
    help: 'where snapshots are kept (default: snapshots in the data directory)',
  },
  'audit-log': {
    takes: 'FILE',
    env: 'FORKD_AUDIT_LOG',
    help: 'one JSON line per request (default: audit.log in the data directory)',
  },
  'token-file': { takes: 'FILE', env: 'FORKD_TOKEN_FILE', help: 'one token, with the role admin' },
  'tls-cert': { takes: 'FILE', env: 'FORKD_TLS_CERT', help: 'certificate chain (PEM) for TCP, with --tls-key' },
  'tls-key': { takes: 'FILE', env: 'FORKD_TLS_KEY', help: 'its private key (PEM)' },
  'prewarm-scratch-dir': {
    takes: 'DIR',
    env: 'FORKD_PREWARM_SCRATCH_DIR',
    help: 'accepted for compatibility, not used: nothing is prewarmed by copying',
  },
  'branch-concurrency': {
    takes: 'N',
    env: 'FORKD_BRANCH_CONCURRENCY',
    help: 'branches at the same time, at least 1',
    fallback: '4',
  },
  'keep-last': {
    takes: 'N',
    env: 'FORKD_KEEP_LAST',
    help: 'branches kept of each line, the newest; 0: all',
    fallback: '0',
  },
  'branch-disk-mb': {
    takes: 'N',
    env: 'FORKD_BRANCH_DISK_MB',
    help: 'disk that all branches may take before the oldest are removed; 0: no limit',
    fallback: '0',
  },
  'gc-secs': {
    takes: 'N',
    env: 'FORKD_GC_SECS',
    help: 'seconds between two removals of what is not to be kept any longer',
    fallback: '60',
  },
  network: {
    takes: 'MODE',
    env: 'FORKD_NETWORK',
    help: 'of new snapshots: tap; user: a device that reaches nothing; none: no device; auto: the first that this host can',
    fallback: 'auto',
  },
  'network-range': {
    takes: 'CIDR',
    env: 'FORKD_NETWORK_RANGE',
    help: 'the four private addresses that the guests of new snapshots see as theirs',
    fallback: '10.107.0.0/30',
  },
  data: { takes: 'DIR', env: 'FORKD_DATA', help: 'the data directory', fallback: '/var/lib/forkd' },
  recipes: { takes: 'DIR', env: 'FORKD_RECIPES', help: 'the recipes (default: those that came with forkd)' },
  socket: { takes: 'PATH', env: 'FORKD_SOCKET', help: 'listen on a Unix socket too; who may open it needs no token' },
  'tokens-file': {
    takes: 'FILE',
    env: 'FORKD_TOKENS_FILE',
    help: 'several tokens (TOML: [[token]] with name, role, and token or token_sha256)',
  },
  domain: {
    takes: 'NAME',
    env: 'FORKD_DOMAIN',
    help: 'ports of sandboxes are reached as PORT-ID.NAME; "none": by path only',
    fallback: 'localhost',
  },
  'default-limits': {
    takes: 'LIST',
    env: 'FORKD_DEFAULT_LIMITS',
    help: 'limits of sandboxes that come without their own, as in "pids_limit=256,cpu_limit=1"; "none"',
    fallback: 'pids_limit=256',
  },
  'allow-unlimited': {
    takes: 'true|false',
    env: 'FORKD_ALLOW_UNLIMITED',
    help: 'run a sandbox also without a limit that this host cannot apply',
    fallback: 'false',
  },
  overcommit: {
    takes: 'N',
    env: 'FORKD_OVERCOMMIT',
    help: 'how many times the memory of this host sandboxes may be promised; 0: no limit',
    fallback: '16',
  },
  'rate-limit': {
    takes: 'N',
    env: 'FORKD_RATE_LIMIT',
    help: 'requests a second for each token; 0: no limit',
    fallback: '1000',
  },
  'max-concurrent': {
    takes: 'N',
    env: 'FORKD_MAX_CONCURRENT',
    help: 'requests at the same time',
    fallback: '512',
  },
  'audit-max-mb': {
    takes: 'N',
    env: 'FORKD_AUDIT_MAX_MB',
    help: 'size at which the audit log is rotated; 0: never',
    fallback: '64',
  },
  'jail-uids': {
    takes: 'FIRST-LAST',
    env: 'FORKD_JAIL_UIDS',
    help: 'users that VMMs run as, each as one of its own; nobody else may be one of them',
    fallback: '300000-365535',
  },
  'no-jail': {
    env: 'FORKD_NO_JAIL',
    help: 'unsafe: VMMs run as root, and who breaks out of one has the host',
  },
  'otlp-endpoint': {
    takes: 'URL',
    env: 'OTEL_EXPORTER_OTLP_ENDPOINT',
    help: 'send OpenTelemetry traces there (OTLP over HTTP)',
  },
  'network-policy': {
    takes: 'POLICY',
    env: 'FORKD_NETWORK_POLICY',
    help: 'where sandboxes may connect of which nobody says more: none, internet or all, then entries, those denied with "!"',
    fallback: 'none',
  },
  dns: {
    takes: 'ADDRESSES',
    env: 'FORKD_DNS',
    help: 'servers to ask for names, joined by commas (default: those of the host)',
  },
  'egress-ca': {
    takes: 'FILE',
    env: 'FORKD_EGRESS_CA',
    help: 'certificates (PEM) to believe beside the usual ones, of hosts to which headers are set',
  },
  'log-level': {
    takes: 'LEVEL',
    env: 'FORKD_LOG',
    help: 'trace, debug, info, warn, error, fatal or silent',
    fallback: 'info',
  },
} as const satisfies Record<string, Flag>;

export type FlagName = keyof typeof FLAGS;
export type Flags = (name: FlagName) => string | undefined;

/** Flags beat the environment, the environment beats the defaults. An empty variable is none. */
export function readFlags(argv: string[], env: NodeJS.ProcessEnv): Flags | 'help' | 'version' {
  const text = { type: 'string' } as const;
  const yes = { type: 'boolean' } as const;
  const names = Object.keys(FLAGS) as FlagName[];
  const kinds = names.map((name) => [name, 'takes' in FLAGS[name] ? text : yes]);
  const options = { ...Object.fromEntries(kinds), help: yes, version: yes };
  // forkd's program is started as `forkd-controller serve …`.
  const args = argv[0] === 'serve' ? argv.slice(1) : argv;
  let given: Record<string, string | boolean | undefined>;
  try {
    ({ values: given } = parseArgs({ args, options }) as { values: typeof given });
  } catch (thrown) {
    throw new ForkdError('invalid_request', (thrown as Error).message.split('. ')[0]!, {
      hint: `Known: ${names.map((name) => `--${name}`).join(' ')} --help --version`,
    });
  }
  if (given.help) return 'help';
  if (given.version) return 'version';
  return (name) => {
    const { env: variable, fallback }: Flag = FLAGS[name];
    const said = given[name] === true ? '1' : (given[name] as string | undefined);
    return said ?? (env[variable] || undefined) ?? fallback;
  };
}

export function helpText(): string {
  const rows = Object.entries<Flag>(FLAGS).map(([name, { takes, env, help, fallback }]) => [
    `  --${name} ${takes ?? ''}`,
    `${help}${fallback === undefined ? '' : ` (default: ${fallback})`} [${env}]`,
  ]);
  rows.push(['  --help', 'this text'], ['  --version', 'the version']);
  const width = Math.max(...rows.map(([left]) => left!.length));
  const lines = rows.map(([left, right]) => `${left!.padEnd(width)}  ${right}`);
  const signals =
    'SIGHUP reads tokens and certificate again and reopens the audit log; SIGTERM ends when all is answered.';
  return ['Usage: forkd-controller [serve] [options]', '', ...lines, '', signals, ''].join('\n');
}

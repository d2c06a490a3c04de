import { option, options, toggle } from '../command.js';
import { count, decimal, oneOf, pair, sandboxId, tag, text } from '../values.js';

/** Flags that several verbs share; their names are forkd's. */
export const TAG = { tag: option('TAG', tag, 'Snapshot', { isRequired: true, complete: 'tags' }) } as const;

export const RECIPE = option('NAME', tag, 'Recipe the snapshot is made from', { complete: 'recipes' });

export const CHILD = {
  child: option('ID', sandboxId, 'Sandbox, instead of the first argument', { complete: 'sandboxes' }),
} as const;

export const NETWORK = {
  preset: option(
    'PRESET',
    oneOf('none', 'internet', 'all'),
    'Where connections may go of which no entry says anything',
  ),
  allow: options('ENTRY', text, 'Address, range, host name or *.DOMAIN it may connect to, with :PORT or without'),
  deny: options('ENTRY', text, 'The same that it may not connect to'),
  rules: option('FILE', text, 'Headers to set for named hosts, as JSON; "-" is standard input'),
} as const;

export const SPAWN = {
  ...NETWORK,
  widen: toggle('It may reach more than the snapshot it comes from'),
  'per-child-netns': toggle('A network namespace for each sandbox (always so)'),
  'memory-limit-mib': option('MIB', count(16, 1 << 20), 'Memory each sandbox may use on the host'),
  'cpu-limit': option('CORES', decimal(0.01, 1024), 'CPU time each sandbox may use, such as 0.5'),
  'cpu-weight': option('N', count(1, 10_000), 'Its weight against other sandboxes, of which most have 100'),
  'pids-limit': option('N', count(16, 1_000_000), 'Processes and threads each may have on the host'),
  'read-bps-limit': option('BYTES', count(4096, 999_999_999), 'Bytes a second each may read from the disk'),
  'write-bps-limit': option('BYTES', count(4096, 999_999_999), 'Bytes a second each may write to it'),
  'read-iops-limit': option('N', count(1, 999_999_999), 'Operations a second, reading'),
  'write-iops-limit': option('N', count(1, 999_999_999), 'Operations a second, writing'),
  'live-fork': toggle('Fork from a live parent'),
  hugepages: toggle('Use huge pages (needs --live-fork)'),
  prewarm: toggle('Touch the memory of each sandbox before it is handed out'),
  env: options('NAME=VALUE', pair, 'Variable of the environment in the sandbox', { short: 'e' }),
  label: options('NAME=VALUE', pair, 'Label to find the sandbox by', { short: 'l' }),
  'ttl-secs': option('SECS', count(1, 31_536_000), 'End the sandbox after this time'),
  'guest-branch': toggle('Programs in the sandbox may fork it: forkd-guest branch'),
} as const;

export const PROGRAM = {
  'timeout-secs': option('SECS', count(1, 86_400), 'Time the program may take', { fallback: 30 }),
  cwd: option('DIR', text, 'Folder to run in'),
  user: option('NAME', text, 'User to run as'),
} as const;

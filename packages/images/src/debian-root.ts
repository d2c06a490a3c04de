import { ForkdError } from '@forkd/protocol';
import type { BuildOptions } from './progress.js';
import { run } from './run.js';

/** Licences stay: whoever passes an image on has to pass them on as well. */
const DPKG_OPTIONS = [
  ...['doc', 'man', 'info', 'locale', 'lintian'].map((name) => `path-exclude=/usr/share/${name}/*`),
  'path-include=/usr/share/doc/*/copyright',
];

/** Installs a minimal Debian with these packages into the empty directory `root`; `scratch` is for temporary files. */
export async function installDebian(
  root: string,
  scratch: string,
  suite: string,
  packages: string[],
  options: BuildOptions,
): Promise<void> {
  const mirror = process.env.FORKD_APT_MIRROR;
  const args = [
    '--mode=root',
    '--variant=minbase',
    '--format=directory',
    ...DPKG_OPTIONS.map((option) => `--dpkgopt=${option}`),
    // The root is not worth anything until it is complete and flushed as one image: no need to flush each file.
    '--dpkgopt=force-unsafe-io',
    ...(packages.length > 0 ? [`--include=${packages.join(',')}`] : []),
    suite,
    root,
    ...(mirror ? [mirror] : []),
  ];
  const onLine = (line: string) => {
    const detail = /^I: (.*)/.exec(line)?.[1];
    if (detail !== undefined) options.onProgress?.({ step: 'packages', detail });
  };
  try {
    await run('mmdebstrap', args, { ...options, sealed: true, scratch, onLine });
  } catch (thrown) {
    throw explained(thrown, suite);
  }
}

function explained(thrown: unknown, suite: string): unknown {
  if (!(thrown instanceof ForkdError) || thrown.code !== 'host_unfit') return thrown;
  const stderr = String(thrown.details.stderr ?? '');
  const missing = [...stderr.matchAll(/Unable to locate package (\S+)|Package '(\S+)' has no installation/g)];
  if (missing.length > 0) {
    const names = [...new Set(missing.map((match) => match[1] ?? match[2]))].join(', ');
    return new ForkdError('recipe_invalid', `base.packages: Debian ${suite} has no package ${names}`, {
      hint: 'Check the names against the package list of that Debian release.',
      cause: thrown,
    });
  }
  if (/Could not resolve|Temporary failure|Unable to connect|Failed to fetch/.test(stderr))
    return new ForkdError('host_unfit', `cannot download packages for Debian ${suite}: ${thrown.message}`, {
      hint: 'Check the network, or name a reachable mirror in FORKD_APT_MIRROR.',
      cause: thrown,
    });
  return thrown;
}

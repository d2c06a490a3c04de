import { mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { ForkdError } from '@forkd/protocol';
import type { BuildOptions } from './progress.js';
import { run } from './run.js';

/** Debian's kernel for virtual machines: always depends on the newest one of the release. */
export const DEBIAN_KERNEL = 'linux-image-cloud-amd64';

const HINT = 'Run apt-get update; where apt cannot provide it, give the path of a kernel.';

/** Downloads the kernel package and unpacks it into `work`; nothing is installed on the host. */
export async function unpackDebianKernel(
  work: string,
  options: BuildOptions,
): Promise<{ path: string; modules: string }> {
  const { onProgress } = options;
  const name = await newestKernel(options);
  onProgress?.({ step: 'download', detail: name });
  await run('apt-get', ['-q', '-o', 'APT::Sandbox::User=root', 'download', name], { ...options, cwd: work }).catch(
    unavailable,
  );
  const archive = (await readdir(work)).find((file) => file.endsWith('.deb'));
  if (archive === undefined)
    throw new ForkdError('host_unfit', `apt-get downloaded no package ${name}`, { hint: HINT });

  onProgress?.({ step: 'unpack', detail: archive });
  const root = join(work, 'kernel');
  await mkdir(root);
  await run('dpkg-deb', ['-x', join(work, archive), root], options);
  return {
    path: await onlyFile(join(root, 'boot'), 'vmlinuz-'),
    modules: await onlyFile(join(root, 'lib/modules'), ''),
  };
}

async function newestKernel(options: BuildOptions): Promise<string> {
  const listing = await run('apt-cache', ['depends', '--important', DEBIAN_KERNEL], options).catch(unavailable);
  const name = /^\s*Depends: (linux-image-[a-z0-9.+-]+)$/m.exec(listing)?.[1];
  if (name === undefined)
    throw new ForkdError('host_unfit', `apt does not know which kernel ${DEBIAN_KERNEL} stands for`, { hint: HINT });
  return name;
}

function unavailable(thrown: unknown): never {
  if (!(thrown instanceof ForkdError) || thrown.code !== 'host_unfit') throw thrown;
  throw new ForkdError('host_unfit', `cannot get ${DEBIAN_KERNEL}: ${thrown.message}`, { hint: HINT, cause: thrown });
}

async function onlyFile(dir: string, prefix: string): Promise<string> {
  const found = (await readdir(dir).catch(() => [])).find((name) => name.startsWith(prefix));
  if (found === undefined)
    throw new ForkdError('host_unfit', `the kernel package has nothing in ${dir}`, { hint: HINT });
  return join(dir, found);
}

import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import { ForkdError } from '@forkd/protocol';

/** Every program a build may start, and the Debian package that has it. */
const PACKAGES = {
  'apt-cache': 'apt',
  'apt-get': 'apt',
  cp: 'coreutils',
  'dpkg-deb': 'dpkg',
  gzip: 'gzip',
  lz4: 'lz4',
  'mkfs.ext4': 'e2fsprogs',
  mmdebstrap: 'mmdebstrap',
  setpriv: 'util-linux',
  unshare: 'util-linux',
  xz: 'xz-utils',
  zstd: 'zstd',
} as const;

export type Tool = keyof typeof PACKAGES;

/** mkfs.ext4 lives in sbin, which the PATH of an ordinary login shell leaves out. */
export function toolPath(path = `${process.env.PATH ?? ''}:/usr/sbin:/sbin`): string {
  return path;
}

export function hasTool(tool: Tool, path = toolPath()): boolean {
  return path.split(delimiter).some((dir) => dir !== '' && isExecutable(join(dir, tool)));
}

/** Names everything that is missing at once, so that one installation repairs the host. */
export function needTools(tools: Iterable<Tool>, path = toolPath()): void {
  const missing = [...new Set(tools)].filter((tool) => !hasTool(tool, path));
  if (missing.length === 0) return;
  const packages = [...new Set(missing.map((tool) => PACKAGES[tool]))];
  throw new ForkdError('host_unfit', `building images needs ${missing.join(', ')}, which this host does not have`, {
    hint: `Install the Debian packages: ${packages.join(' ')}.`,
    details: { missing, packages },
  });
}

/** Unpacking a root file system keeps owners and device nodes, and mounts inside a namespace. */
export function needRoot(): void {
  if (process.geteuid?.() !== 0) throw new ForkdError('not_permitted', 'building images needs root');
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

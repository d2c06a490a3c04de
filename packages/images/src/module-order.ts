import { readdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { ForkdError } from '@forkd/protocol';
import { decompress } from './decompress.js';
import type { RunOptions } from './run.js';

export interface WantedModule {
  name: string;
  optional?: boolean;
}

/** What a guest needs before it can reach its root disk, its host and its network. */
export const GUEST_MODULES: WantedModule[] = [
  { name: 'virtio_mmio' },
  { name: 'virtio_blk' },
  { name: 'virtio_console' },
  { name: 'virtio_net' },
  { name: 'overlay' },
  { name: 'ext4' },
  { name: 'virtio_rng', optional: true },
  { name: 'vmw_vsock_virtio_transport', optional: true },
];

/**
 * Writes the wanted modules and all they depend on, decompressed, as `out/NN-name.ko` and returns those file names:
 * loading them in this order finds every symbol. Dependencies come from the modules themselves, because modules.dep is
 * made when a kernel package is installed and ours only gets unpacked.
 */
export async function writeModules(
  modules: string,
  wanted: WantedModule[],
  out: string,
  work: string,
  options: RunOptions,
): Promise<string[]> {
  const files = await moduleFiles(modules);
  const builtin = await builtinModules(modules);
  const seen = new Set<string>();
  const order: string[] = [];

  const add = async (name: string, needed: string, optional: boolean): Promise<void> => {
    if (seen.has(name) || builtin.has(name)) return;
    seen.add(name);
    const file = files.get(name);
    if (file === undefined && optional) return;
    if (file === undefined)
      throw new ForkdError('invalid_request', `the kernel has no module ${name}${needed}`, {
        hint: 'Use a kernel with it built in or built as a module.',
      });
    const plain = join(work, `${name}.ko`);
    await decompress(file, plain, options);
    for (const dependency of dependencies(await readFile(plain))) await add(dependency, `, which ${name} needs`, false);
    const target = `${String(order.length).padStart(2, '0')}-${name}.ko`;
    await decompress(plain, join(out, target), options);
    order.push(target);
  };

  for (const { name, optional } of wanted) await add(name, '', optional === true);
  return order;
}

/** The `depends=` line of a module's information section. */
function dependencies(module: Buffer): string[] {
  const line = /\0depends=([^\0]*)\0/.exec(module.toString('latin1'))?.[1] ?? '';
  return line.split(',').filter(Boolean).map(moduleName);
}

async function moduleFiles(modules: string): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for (const item of await readdir(modules, { recursive: true, withFileTypes: true }))
    if (item.isFile() && /\.ko(\.\w+)?$/.test(item.name))
      found.set(moduleName(item.name), join(item.parentPath, item.name));
  return found;
}

async function builtinModules(modules: string): Promise<Set<string>> {
  const list = await readFile(join(modules, 'modules.builtin'), 'utf8').catch(() => '');
  return new Set(list.split('\n').map((line) => moduleName(basename(line))));
}

/** The kernel takes "-" and "_" in module names as the same; only file names differ. */
function moduleName(file: string): string {
  return file.replace(/\.ko(\.\w+)?$/, '').replaceAll('-', '_');
}

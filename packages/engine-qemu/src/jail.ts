import { execFile } from 'node:child_process';
import { access, constants, readdir, realpath } from 'node:fs/promises';
import { delimiter, dirname, resolve } from 'node:path';
import { promisify } from 'node:util';
import { nativeBinary, type Uids } from '@forkd/host';
import { ForkdError } from '@forkd/protocol';

/** Far from those that hosts give to people and services, and from the ranges of most containers. */
export const JAIL_UIDS: Uids = { first: 300_000, last: 365_535 };

/** What QEMU itself consists of. */
export interface QemuFiles {
  program: string;
  /** Makes it content with a memory image that it may only read. */
  preload: string;
  /** All of it, read-only: program, libraries, modules, firmware. */
  files: string[];
}

/** Asks the host once what a jail must hold for QEMU to run in it. */
export async function qemuFiles(binary: string): Promise<QemuFiles> {
  const program = await find(binary);
  const preload = nativeBinary('forkd-read-only-open.so');
  const libraries = await librariesOf(program);
  const modules = await accelerators(libraries);
  const theirs = await Promise.all(modules.map(librariesOf));
  const cache = (await exists('/etc/ld.so.cache')) ? ['/etc/ld.so.cache'] : [];
  const files = [program, preload, ...libraries, ...modules, ...theirs.flat(), ...cache, ...(await firmware(program))];
  return { program, preload, files: [...new Set(files)] };
}

async function find(binary: string): Promise<string> {
  const directories = binary.includes('/') ? [''] : (process.env.PATH ?? '/usr/bin:/bin').split(delimiter);
  for (const directory of directories) {
    const path = resolve(directory, binary);
    if (await exists(path)) return realpath(path);
  }
  throw new ForkdError('engine_unavailable', `${binary} is not installed`, { hint: 'apt-get install qemu-system-x86' });
}

/** With the loader, each under the name by which it is looked up. */
async function librariesOf(file: string): Promise<string[]> {
  const { stdout } = await promisify(execFile)('ldd', [file], { timeout: 10_000 });
  return [...stdout.matchAll(/^\s*(?:\S+ => )?(\/\S+) \(0x/gm)].map(([, path]) => path!);
}

/** Some distributions keep them out of the program. */
async function accelerators(libraries: string[]): Promise<string[]> {
  const folders = new Set(await Promise.all(libraries.map(async (path) => `${await realpath(dirname(path))}/qemu`)));
  const lists = await Promise.all(
    [...folders].map(async (folder) => {
      const names = await readdir(folder).catch(() => []);
      return names.filter((name) => /^accel-.*\.so$/.test(name)).map((name) => `${folder}/${name}`);
    }),
  );
  return lists.flat();
}

async function firmware(program: string): Promise<string[]> {
  const { stdout } = await promisify(execFile)(program, ['-L', 'help'], { timeout: 10_000 });
  const folders = stdout.split('\n').filter((line) => line.startsWith('/'));
  const found = await Promise.all(folders.map(async (folder) => ((await exists(folder)) ? [resolve(folder)] : [])));
  return found.flat();
}

async function exists(path: string): Promise<boolean> {
  return access(path, constants.R_OK).then(
    () => true,
    () => false,
  );
}

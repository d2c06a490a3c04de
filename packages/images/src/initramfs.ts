import { readFile, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { ForkdError } from '@forkd/protocol';
import { z } from 'zod';
import { type CpioEntry, cpioArchive } from './cpio.js';
import { storedEntry } from './entry.js';
import { sha256 } from './hash.js';
import type { Kernel } from './kernel.js';
import type { BuildOptions } from './progress.js';

export interface Initramfs {
  path: string;
  hash: string;
}

const FILE = 'initramfs.cpio';
const DIRECTORIES = ['dev', 'proc', 'sys', 'run', 'modules', 'newroot', 'base', 'upper'];
const DIRECTORY = 0o040755;
const EXECUTABLE = 0o100755;
const PLAIN = 0o100644;
const CONSOLE: CpioEntry = { path: 'dev/console', mode: 0o020600, device: [5, 1] };

/** The guest's first root: the agent as /init, and the modules it loads. Not compressed: the guest would pay for it. */
export async function buildInitramfs(kernel: Kernel, agent: string, options: BuildOptions): Promise<Initramfs> {
  const binary = await readFile(agent).catch((cause) => {
    throw new ForkdError('host_unfit', `cannot read the guest agent ${agent}`, {
      hint: 'Build it first: cargo build --release in native/.',
      cause,
    });
  });
  const entry = await storedEntry(options, {
    kind: 'initramfs',
    inputs: { agent: sha256(binary), modules: kernel.modulesHash },
    info: z.object({ hash: z.string() }),
    async build(out) {
      options.onProgress?.({ step: 'initramfs', detail: `${kernel.modules.length} modules` });
      const archive = cpioArchive(await members(kernel, binary));
      await writeFile(join(out, FILE), archive);
      return { hash: sha256(archive) };
    },
  });
  return { path: join(entry.dir, FILE), hash: entry.info.hash };
}

async function members(kernel: Kernel, agent: Buffer): Promise<CpioEntry[]> {
  const modules = kernel.modules.map(async (path) => ({
    path: `modules/${basename(path)}`,
    mode: PLAIN,
    data: await readFile(path),
  }));
  return [
    ...DIRECTORIES.map((path) => ({ path, mode: DIRECTORY })),
    CONSOLE,
    { path: 'init', mode: EXECUTABLE, data: agent },
    ...(await Promise.all(modules)),
  ];
}

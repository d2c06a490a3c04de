import { constants, createReadStream } from 'node:fs';
import { lstat, mkdir, open, readdir, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { type FileInfo, ForkdError } from '@forkd/protocol';
import type { Files } from '@forkd/sdk';

export interface Copied {
  files: number;
  bytes: number;
  skipped: number;
}

export interface Steps {
  signal: AbortSignal;
  onFile(path: string, copied: Copied): void;
  onSkip(path: string, why: string): void;
}

/** From this host into a sandbox. A target that is a folder, or ends with `/`, gets the source below it. */
export async function upload(files: Files, from: string, to: string, steps: Steps): Promise<Copied> {
  const copied: Copied = { files: 0, bytes: 0, skipped: 0 };
  const { signal } = steps;
  if (from === '-') {
    await files.write(to, counted(process.stdin, copied), { signal });
    return { ...copied, files: 1 };
  }
  const isFolder = to.endsWith('/') || (await isGuestFolder(files, to, signal));
  await walk(from, isFolder ? `${to.replace(/\/+$/, '')}/${basename(from)}` : to);
  return copied;

  async function walk(source: string, target: string): Promise<void> {
    const info = await lstat(source).catch((cause: NodeJS.ErrnoException) => {
      throw new ForkdError('file_not_found', `cannot read ${source}: ${cause.code}`, {
        cause,
        hint: 'Check the path on this host.',
      });
    });
    if (info.isDirectory()) {
      await files.makeFolder(target, { signal });
      for (const name of await readdir(source)) await walk(join(source, name), `${target}/${name}`);
    } else if (info.isFile()) {
      await files.write(target, counted(createReadStream(source), copied), { signal });
      copied.files++;
      steps.onFile(source, copied);
    } else skip(copied, steps, source, info.isSymbolicLink() ? 'a symbolic link' : 'not a file');
  }
}

/** Out of a sandbox. Every name comes from the guest: none may lead out of the target, by its spelling or by a link. */
export async function download(files: Files, from: string, to: string, steps: Steps): Promise<Copied> {
  const copied: Copied = { files: 0, bytes: 0, skipped: 0 };
  const { signal } = steps;
  if (to === '-') {
    await pipeline(counted(await files.read(from, { signal }), copied), process.stdout, { end: false, signal });
    return { ...copied, files: 1 };
  }
  const info = await files.stat(from, { signal });
  const isFolder = to.endsWith('/') || (await stat(to).catch(() => undefined))?.isDirectory();
  await walk(info, from, isFolder ? join(to, safeName(basename(from))) : to);
  return copied;

  async function walk({ type, mode }: FileInfo, source: string, target: string): Promise<void> {
    if (type === 'dir') {
      await mkdir(target, { recursive: true });
      // A link somebody put there meanwhile is not followed.
      if (!(await lstat(target)).isDirectory()) throw notAFolder(target);
      for (const entry of await files.list(source, { signal })) {
        const path = `${source.replace(/\/+$/, '')}/${safeName(entry.name)}`;
        // A link may lead anywhere, also in a circle.
        if (entry.symlink_target !== null) skip(copied, steps, path, 'a symbolic link');
        else await walk(entry, path, join(target, entry.name));
      }
    } else if (type === 'file') {
      await save(await files.read(source, { signal }), target, mode & 0o777);
      copied.files++;
      steps.onFile(target, copied);
    } else skip(copied, steps, source, 'not a file');
  }

  async function save(content: Readable, target: string, mode: number): Promise<void> {
    const { O_WRONLY, O_CREAT, O_TRUNC, O_NOFOLLOW } = constants;
    const file = await open(target, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, mode).catch((cause) => {
      content.destroy();
      throw new ForkdError('invalid_request', `cannot write ${target}: ${cause.code}`, {
        cause,
        hint: 'Check the path on this host.',
      });
    });
    await pipeline(counted(content, copied), file.createWriteStream(), { signal });
  }
}

function skip(copied: Copied, { onSkip }: Steps, path: string, why: string): void {
  copied.skipped++;
  onSkip(path, why);
}

/** A name of one file: no way up, no way down, nothing hidden in it. */
export function safeName(name: string): string {
  if (name !== '' && name !== '.' && name !== '..' && !/[/\0]/.test(name)) return name;
  throw new ForkdError(
    'guest_protocol',
    `the sandbox sent a file name that is none: ${JSON.stringify(name.slice(0, 100))}`,
  );
}

async function isGuestFolder(files: Files, path: string, signal: AbortSignal): Promise<boolean> {
  try {
    return (await files.stat(path, { signal })).type === 'dir';
  } catch (error) {
    if (error instanceof ForkdError && error.code === 'file_not_found') return false;
    throw error;
  }
}

function counted(content: Readable, copied: Copied): Readable {
  content.on('data', (chunk: Buffer) => {
    copied.bytes += chunk.length;
  });
  return content;
}

function notAFolder(path: string): ForkdError {
  return new ForkdError('invalid_request', `${path} is not a folder`, { hint: 'Choose another target.' });
}

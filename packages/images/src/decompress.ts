import { copyFile, open } from 'node:fs/promises';
import { type RunOptions, run } from './run.js';
import type { Tool } from './tools.js';

const MAGICS: [magic: string, tool: Tool][] = [
  ['1f8b', 'gzip'],
  ['fd377a585a00', 'xz'],
  ['28b52ffd', 'zstd'],
  ['02214c18', 'lz4'],
  ['04224d18', 'lz4'],
];

/** Which program undoes the compression that these first bytes announce; undefined when they announce none. */
export function compressor(head: Buffer): Tool | undefined {
  return MAGICS.find(([magic]) => head.toString('hex').startsWith(magic))?.[1];
}

/** Writes the plain form of `source` to `target`, whatever it is compressed with. */
export async function decompress(source: string, target: string, options: RunOptions): Promise<void> {
  const file = await open(source, 'r');
  const head = Buffer.alloc(8);
  try {
    await file.read(head, 0, head.length, 0);
  } finally {
    await file.close();
  }
  const tool = compressor(head);
  if (tool) await run(tool, ['-dc', '--', source], { ...options, output: target });
  else await copyFile(source, target);
}

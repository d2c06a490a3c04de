import type { Diff } from '@forkd/protocol';
import { command } from '../command.js';
import { clean } from '../output.js';
import { bytes } from '../units.js';
import { tag } from '../values.js';

export const diff = command({
  name: 'diff',
  group: 'snapshots',
  summary: 'Show what differs between two sandboxes or snapshots of one line',
  operands: [{ name: 'A' }, { name: 'B' }],
  flags: {},
  async run(context, { operands: [a = '', b = ''] }) {
    const found = await (await context.daemon()).diff(tag(a), tag(b), { signal: context.signal });
    await context.output.result(found, () => lines(found).join('\n'));
  },
});

function lines({ files, processes, memory }: Diff): string[] {
  return [
    ...files.added.map(({ path, size }) => `+ ${clean(path)}  ${bytes(size)}`),
    ...files.changed.map(({ path, size, size_before }) => `~ ${clean(path)}  ${bytes(size_before)} -> ${bytes(size)}`),
    ...files.removed.map(({ path, size }) => `- ${clean(path)}  ${bytes(size)}`),
    ...processes.added.map(({ pid, command }) => `+ process ${pid}  ${clean(command)}`),
    ...processes.removed.map(({ pid, command }) => `- process ${pid}  ${clean(command)}`),
    ...(files.truncated || processes.truncated ? ['there is more than is shown'] : []),
    `${memory.pages_changed} of ${memory.pages} pages of memory differ (${bytes(memory.pages_changed * memory.page_bytes)})`,
  ];
}

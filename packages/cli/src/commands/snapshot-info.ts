import { command } from '../command.js';
import { bytes } from '../units.js';
import { tag } from '../values.js';

export const snapshotInfo = command({
  name: 'snapshot-info',
  group: 'snapshots',
  summary: 'Sizes and relatives of a snapshot',
  operands: [{ name: 'TAG', complete: 'tags' }],
  flags: {},
  async run(context, { operands: [name = ''] }) {
    const { output, signal } = context;
    const info = await (await context.daemon()).snapshots.info(tag(name), { signal });
    await output.result(info, () =>
      output.table(
        ['FIELD', 'VALUE'],
        [
          ['tag', info.tag],
          ['dir', info.dir],
          ['memory', `${bytes(info.memory_physical_bytes)} of ${bytes(info.memory_logical_bytes)}`],
          ['device state', bytes(info.vmstate_bytes)],
          ['chain depth', info.chain_depth],
          ['parent', info.parent_tag],
          ['parent hash', info.parent_content_hash],
          ['ancestors', info.ancestors.join(', ')],
          ['dependents', info.dependents.join(', ')],
          ['sandboxes', info.sandboxes.length],
        ],
      ),
    );
  },
});

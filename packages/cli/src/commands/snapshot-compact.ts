import { command, option } from '../command.js';
import { tag } from '../values.js';
import { describe } from './snapshot.js';

export const snapshotCompact = command({
  name: 'snapshot-compact',
  group: 'snapshots',
  summary: 'Flatten a chain of snapshots into a new one',
  flags: {
    from: option('TAG', tag, 'End of the chain', { isRequired: true, complete: 'tags' }),
    to: option('TAG', tag, 'Name of the new snapshot', { isRequired: true }),
  },
  async run(context, { flags }) {
    const { snapshots } = await context.daemon();
    const made = await snapshots.compact(flags.from, flags.to, { signal: context.signal });
    await context.output.result(made, () => context.output.good(describe(made)));
  },
});

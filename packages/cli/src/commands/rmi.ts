import { command, toggle } from '../command.js';
import { usage } from '../usage.js';
import { tag } from '../values.js';
import { each } from './each.js';

export const rmi = command({
  name: 'rmi',
  group: 'snapshots',
  summary: 'Remove snapshots',
  operands: [{ name: 'TAG', isMany: true, complete: 'tags' }],
  flags: {
    cascade: toggle('Also remove the snapshots that depend on it'),
    force: toggle('Remove it although others depend on it'),
  },
  async run(context, { flags: { cascade, force }, operands }) {
    if (cascade && force) throw usage('--cascade and --force exclude each other');
    const tags = operands.map(tag);
    const { snapshots } = await context.daemon();
    return each(context, 'tag', tags, (name) => snapshots.remove(name, { cascade, force, signal: context.signal }));
  },
});

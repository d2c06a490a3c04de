import { command, options, toggle } from '../command.js';
import { usage } from '../usage.js';
import { tag } from '../values.js';

export const share = command({
  name: 'share',
  group: 'snapshots',
  summary: 'Let others spawn from a snapshot',
  operands: [{ name: 'TAG', complete: 'tags' }],
  flags: {
    with: options('NAME', tag, 'The token of this name; several may be given'),
    all: toggle('All tokens of the daemon'),
    none: toggle('Nobody any more'),
  },
  examples: ['forkd share numpy --with ci --with ann', 'forkd share numpy --none'],
  async run(context, { flags, operands: [name = ''] }) {
    const { with: names, all, none } = flags;
    if ([names.length > 0, all, none].filter(Boolean).length !== 1)
      throw usage('give --with, --all or --none', 'Who is not named any more loses it.');
    const { snapshots } = await context.daemon();
    const shared = await snapshots.share(tag(name), all ? 'all' : names, { signal: context.signal });
    const { output } = context;
    const whom = shared.shared_with === 'all' ? 'everybody' : shared.shared_with?.join(', ');
    await output.result(shared, () => output.good(`${shared.tag} is shared with ${whom ?? 'nobody'}`));
  },
});

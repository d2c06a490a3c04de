import { command, option, toggle } from '../command.js';
import { usage } from '../usage.js';
import { count, tag } from '../values.js';
import { describe } from './snapshot.js';

export const retain = command({
  name: 'retain',
  group: 'snapshots',
  summary: 'Say how long a snapshot is kept',
  operands: [{ name: 'TAG', complete: 'tags' }],
  flags: {
    pin: toggle('It is never removed by gc'),
    unpin: toggle('It may be removed again'),
    'ttl-secs': option('SECS', count(1, 31_536_000), 'It may be removed after this time'),
    'no-ttl': toggle('It has no such time any more'),
  },
  async run(context, { flags, operands: [name = ''] }) {
    const { pin, unpin, 'ttl-secs': ttl, 'no-ttl': forever } = flags;
    if (pin && unpin) throw usage('--pin and --unpin exclude each other');
    if (ttl !== undefined && forever) throw usage('--ttl-secs and --no-ttl exclude each other');
    if (!pin && !unpin && ttl === undefined && !forever) throw usage('say what is to change: see --help');
    const change = { ...(pin || unpin ? { pinned: pin } : {}), ...(forever ? { ttl_secs: null } : { ttl_secs: ttl }) };
    const { snapshots } = await context.daemon();
    const changed = await snapshots.update(tag(name), change, { signal: context.signal });
    await context.output.result(changed, () => context.output.good(describe(changed)));
  },
});

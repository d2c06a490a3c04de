import { SandboxState } from '@forkd/protocol';
import { all } from '@forkd/sdk';
import { command, option, options, toggle } from '../command.js';
import { age } from '../units.js';
import { oneOf, pair, tag } from '../values.js';

export const ls = command({
  name: 'ls',
  group: 'sandboxes',
  summary: 'List sandboxes, newest first',
  flags: {
    tag: option('TAG', tag, 'Only those of this snapshot', { complete: 'tags' }),
    state: option('STATE', oneOf(...SandboxState.options), 'Only those in this state; else all that have not ended'),
    label: options('NAME=VALUE', pair, 'Only those with this label', { short: 'l' }),
    quiet: toggle('Only the ids', { short: 'q' }),
  },
  async run(context, { flags }) {
    const { output, signal } = context;
    const metadata = flags.label.length > 0 ? Object.fromEntries(flags.label) : undefined;
    const query = { snapshot_tag: flags.tag, state: flags.state, metadata, signal };
    const sandboxes = await all((await context.daemon()).sandboxes.list(query));
    await output.result(sandboxes, () =>
      flags.quiet
        ? sandboxes.map(({ id }) => id).join('\n')
        : output.table(
            ['ID', 'SNAPSHOT', 'STATE', 'PID', 'AGE', 'BRANCHES', 'LABELS'],
            sandboxes.map((info) => [
              ...[info.id, info.snapshot_tag, info.state, info.pid, age(info.created_at_unix), info.branch_count],
              Object.entries(info.metadata)
                .map(([name, value]) => `${name}=${value}`)
                .join(','),
            ]),
          ),
    );
  },
});

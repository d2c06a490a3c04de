import { EventType } from '@forkd/protocol';
import { command, option, options } from '../command.js';
import { clean } from '../output.js';
import { count, oneOf, sandboxId, tag } from '../values.js';

export const events = command({
  name: 'events',
  group: 'daemon',
  summary: 'Show what happens, as it happens, until stopped',
  flags: {
    type: options('TYPE', oneOf(...EventType.options), 'Only these'),
    sandbox: option('ID', sandboxId, 'Only about this sandbox', { complete: 'sandboxes' }),
    tag: option('TAG', tag, 'Only about this snapshot', { complete: 'tags' }),
    since: option('SEQ', count(0, 999_999_999), 'Also what is remembered after this one; 0 for all'),
  },
  async run(context, { flags }) {
    const { output, signal } = context;
    const { sandbox: sandbox_id, tag: snapshot_tag, since } = flags;
    const types = flags.type.length > 0 ? flags.type : undefined;
    for await (const event of (await context.daemon()).events({ types, sandbox_id, snapshot_tag, since, signal })) {
      const time = new Date(event.at_unix_ms).toISOString();
      const about = [event.snapshot_tag, event.sandbox_id].filter((name) => name !== undefined).join(' ');
      await output.print(
        output.isJson
          ? JSON.stringify(event)
          : `${time}  ${event.type.padEnd(8)}  ${about}  ${clean(event.message ?? '')}`.trimEnd(),
      );
    }
  },
});

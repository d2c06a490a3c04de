import { ForkdError } from '@forkd/protocol';
import { command, option } from '../command.js';
import { count, tag, text } from '../values.js';
import { describe } from './snapshot.js';

export const snapshotDiff = command({
  name: 'snapshot-diff',
  group: 'snapshots',
  summary: 'Run a command on top of a snapshot and save what it changed',
  flags: {
    from: option('TAG', tag, 'Snapshot to begin with', { isRequired: true, complete: 'tags' }),
    tag: option('TAG', tag, 'Name of the new snapshot', { isRequired: true }),
    exec: option('CMD', text, 'A line for the shell', { isRequired: true }),
    'exec-timeout-secs': option('SECS', count(1, 86_400), 'Time the command may take', { fallback: 600 }),
  },
  async run(context, { flags }) {
    const { output, signal } = context;
    const { sandboxes } = await context.daemon();
    await using sandbox = (await sandboxes.spawn({ snapshot_tag: flags.from, signal }))[0]!;
    const args = ['/bin/sh', '-c', flags.exec];
    const done = await sandbox.exec(args, { timeout_secs: flags['exec-timeout-secs'], signal });
    if (done.exit_code !== 0)
      throw new ForkdError(
        'guest_error',
        `the command ended with ${done.exit_code}: ${done.stderr.slice(-500).trim()}`,
        {
          hint: 'Nothing was saved. Try the command with `forkd run`.',
        },
      );
    const made = await sandbox.branch({ tag: flags.tag, mode: 'diff', parent_tag: flags.from, signal });
    await output.result(made, () => describe(made));
  },
});

import { createReadStream, existsSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { ForkdError } from '@forkd/protocol';
import { command, option, toggle } from '../command.js';
import { daemonLog } from '../installed.js';
import { count } from '../values.js';

const POLL_MS = 200;

export const logs = command({
  name: 'logs',
  group: 'daemon',
  summary: 'Show the log of the daemon that was started on this host on demand',
  flags: {
    lines: option('COUNT', count(0, 1_000_000), 'How many of the last lines', { short: 'n', fallback: 100 }),
    follow: toggle('Go on with what is added, until stopped', { short: 'f' }),
  },
  async run(context, { flags }) {
    const { output, signal, env } = context;
    const file = daemonLog(env);
    if (!existsSync(file))
      throw new ForkdError('file_not_found', `there is no ${file}`, {
        hint: 'A daemon started by `forkd serve` or by a service logs to its own output (journalctl).',
      });
    const text = readFileSync(file);
    const lines = text
      .toString()
      .trimEnd()
      .split('\n')
      .slice(-flags.lines || undefined);
    if (output.isJson && !flags.follow) return output.result({ file, lines: flags.lines === 0 ? [] : lines }, () => '');
    if (flags.lines > 0) await output.print(lines.join('\n'));
    for (let at = text.length; flags.follow && !signal.aborted; await sleep(POLL_MS, undefined, { signal }))
      for await (const chunk of createReadStream(file, { start: at }) as AsyncIterable<Buffer>) {
        at += chunk.length;
        await output.write('stdout', chunk);
      }
    return undefined;
  },
});

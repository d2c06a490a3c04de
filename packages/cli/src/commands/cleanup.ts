import { lstatSync, readdirSync, rmSync } from 'node:fs';
import { all } from '@forkd/sdk';
import { command, toggle } from '../command.js';
import type { Context } from '../context.js';
import { daemonSocket, dataDirectory } from '../installed.js';
import { answers } from '../probe.js';
import { bytes } from '../units.js';

/** Something nobody uses any more, and how to be rid of it. */
interface Leftover {
  kind: 'sandbox' | 'snapshot' | 'socket';
  name: string;
  why: string;
  remove(): Promise<unknown>;
}

export const cleanup = command({
  name: 'cleanup',
  group: 'daemon',
  summary: 'Show what nobody uses any more; with -y remove it',
  flags: { yes: toggle('Remove it', { short: 'y' }) },
  async run(context, { flags }) {
    const { output, env } = context;
    const leftovers = await find(context);
    if (flags.yes) for (const { remove } of leftovers) await remove();
    const cache = { path: `${dataDirectory(env)}/images`, size_bytes: diskUse(`${dataDirectory(env)}/images`) };
    const found = leftovers.map(({ kind, name, why }) => ({ kind, name, why, removed: flags.yes }));
    await output.result({ leftovers: found, image_cache: cache }, () =>
      [
        found.length === 0
          ? 'nothing is left over'
          : output.table(
              ['KIND', 'NAME', 'WHY', 'REMOVED'],
              found.map((item) => [item.kind, item.name, item.why, item.removed ? 'yes' : 'no']),
            ),
        `image cache: ${bytes(cache.size_bytes)} in ${cache.path} (kept: building it again takes minutes)`,
        ...(found.length > 0 && !flags.yes ? ['nothing was removed; do it with `forkd cleanup -y`'] : []),
      ].join('\n'),
    );
  },
});

/** Only what is certainly dead: what the daemon itself calls ended or failed, and a socket nobody listens on. */
async function find({ env, signal, runningDaemon }: Context): Promise<Leftover[]> {
  const daemon = await runningDaemon();
  const leftovers: Leftover[] = [];
  for (const { id, exit_reason } of daemon ? await all(daemon.sandboxes.list({ state: 'exited', signal })) : [])
    leftovers.push({
      ...{ kind: 'sandbox', name: id, why: exit_reason ?? 'it has ended' },
      remove: async () => (await daemon!.sandboxes.get(id)).kill(),
    });
  for (const { tag } of daemon
    ? (await daemon.snapshots.list({ signal })).filter(({ status }) => status === 'failed')
    : [])
    leftovers.push({
      ...{ kind: 'snapshot', name: tag, why: 'making it failed' },
      remove: () => daemon!.snapshots.remove(tag),
    });
  const socket = daemonSocket(env);
  if (isSocket(socket) && !(await answers({ socket }, signal)))
    leftovers.push({
      ...{ kind: 'socket', name: socket, why: 'nobody listens there' },
      remove: async () => rmSync(socket),
    });
  return leftovers;
}

function isSocket(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isSocket() === true;
}

/** What the files below a folder really take on disk. */
function diskUse(folder: string): number {
  try {
    return readdirSync(folder, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .reduce((sum, entry) => sum + lstatSync(`${entry.parentPath}/${entry.name}`).blocks * 512, 0);
  } catch {
    return 0;
  }
}

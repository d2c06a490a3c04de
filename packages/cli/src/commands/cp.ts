import { command } from '../command.js';
import type { Context } from '../context.js';
import { type Copied, download, upload } from '../copy.js';
import { bytes } from '../units.js';
import { usage } from '../usage.js';

const REMOTE = /^(sb-[0-9a-z]{20}):(.+)$/s;

export const cp = command({
  name: 'cp',
  group: 'sandboxes',
  summary: 'Copy files and folders into or out of a sandbox',
  operands: [
    { name: 'FROM', complete: 'files' },
    { name: 'TO', complete: 'files' },
  ],
  flags: {},
  examples: ['forkd cp ./data ID:/root/data', 'forkd cp ID:/var/log/app.log -', 'tar c . | forkd cp - ID:/tmp/all.tar'],
  async run(context, { operands: [from = '', to = ''] }) {
    const [, fromId, fromPath] = REMOTE.exec(from) ?? [];
    const [, toId, toPath] = REMOTE.exec(to) ?? [];
    if ((fromId === undefined) === (toId === undefined))
      throw usage('one of FROM and TO is in a sandbox, the other is not', 'A path in a sandbox is written ID:/path.');
    const { output, signal } = context;
    const sandbox = await (await context.daemon()).sandboxes.get((fromId ?? toId)!, { signal });
    const steps = {
      signal,
      onFile: shown(context),
      onSkip: (path: string, why: string) => output.say(`skipped ${path}: ${why}`),
    };
    const copied =
      fromPath === undefined
        ? await upload(sandbox.files, from, toPath!, steps)
        : await download(sandbox.files, fromPath, to, steps);
    output.endProgress();
    // With `-` the content itself is the result.
    if (to !== '-') await output.result(copied, () => `${copied.files} files, ${bytes(copied.bytes)}`);
  },
});

function shown({ output }: Context): (path: string, copied: Copied) => void {
  return (path, { files, bytes: size }) => {
    if (process.stderr.isTTY) output.progress(`${files} files, ${bytes(size)}  ${path}`);
  };
}

import { all, type Forkd } from '@forkd/sdk';
import { type Command, command, option } from '../command.js';
import { completionScript, SHELLS } from '../completion.js';
import { usage } from '../usage.js';
import { oneOf } from '../values.js';

const NAMES = {
  tags: async (daemon: Forkd) => (await daemon.snapshots.list()).map(({ tag }) => tag),
  sandboxes: async (daemon: Forkd) => (await all(daemon.sandboxes.list())).map(({ id }) => id),
  recipes: async (daemon: Forkd) => (await daemon.recipes()).map(({ name }) => name),
};

/** Needs the table it is itself a row of. */
export function completion(commands: () => readonly Command[]): Command {
  return command({
    name: 'completion',
    group: 'daemon',
    summary: 'Print a script that lets a shell complete commands, flags and names',
    operands: [{ name: 'bash|zsh|fish', isOptional: true }],
    flags: { list: option('KIND', oneOf('tags', 'sandboxes', 'recipes'), 'Print the names the script offers') },
    examples: ['source <(forkd completion bash)', 'forkd completion fish > ~/.config/fish/completions/forkd.fish'],
    async run({ output, runningDaemon }, { flags, operands: [shell] }) {
      if (flags.list !== undefined) {
        const daemon = await runningDaemon();
        const names = daemon ? await NAMES[flags.list](daemon) : [];
        return output.result(names, () => names.join('\n'));
      }
      if (shell === undefined) throw usage(`which shell? One of ${SHELLS.join(', ')}`);
      const script = completionScript(oneOf(...SHELLS)(shell), commands());
      return output.result({ shell, script }, () => script.trimEnd());
    },
  });
}

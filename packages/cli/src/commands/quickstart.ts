import { execFile, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createInterface } from 'node:readline/promises';
import { promisify } from 'node:util';
import { ForkdError } from '@forkd/protocol';
import type { Forkd } from '@forkd/sdk';
import { command, option, toggle } from '../command.js';
import type { Context } from '../context.js';
import { DOCTOR, dataDirectory, SETUP } from '../installed.js';
import { ms } from '../units.js';
import { count, tag } from '../values.js';
import { examine, reportText } from './doctor.js';
import { openShell } from './shell.js';
import { haveSnapshot } from './snapshot.js';

const TAG = 'quickstart';

export const quickstart = command({
  name: 'quickstart',
  group: 'start',
  summary: 'From nothing to a shell in a warmed sandbox; asks before it changes the host',
  flags: {
    n: option('COUNT', count(1, 1000), 'Sandboxes of the demonstration', { short: 'n', fallback: 10 }),
    recipe: option('NAME', tag, 'Recipe of the snapshot', { fallback: 'python-numpy', complete: 'recipes' }),
    yes: toggle('Do not ask', { short: 'y' }),
  },
  async run(context, { flags }) {
    const { output, signal } = context;
    const running = await context.runningDaemon();
    const packages = running ? [] : await missingPackages();
    if (existsSync(DOCTOR) && packages.length === 0 && !running) {
      const report = await examine(context);
      output.say(reportText(context, report));
      if (report.fail > 0)
        throw new ForkdError('host_unfit', `${report.fail} checks failed`, {
          hint: 'Each says above what to do about it.',
        });
    }
    const changes = await plan(context, running, packages, flags.recipe);
    if (changes.length > 0 && !flags.yes) await consent(context, changes);
    if (packages.length > 0) await install();
    const daemon = await context.daemon();
    await haveSnapshot(context, daemon, TAG, flags.recipe);
    const begin = performance.now();
    const sandboxes = await daemon.sandboxes.spawn({ snapshot_tag: TAG, n: flags.n, signal });
    const wall = performance.now() - begin;
    const [first, ...others] = sandboxes;
    try {
      const answer = await first!.eval('1 + 1', { signal }).catch(() => undefined);
      await Promise.allSettled(others.map((sandbox) => sandbox.kill()));
      const result = {
        tag: TAG,
        n: flags.n,
        wall_ms: Number(wall.toFixed(1)),
        sandbox: first!.info,
        eval: answer?.result ?? null,
      };
      await output.result(result, () =>
        [
          output.good(`${flags.n} sandboxes in ${ms(wall)}`),
          ...(answer?.result ? [output.good(`1 + 1 = ${answer.result}, evaluated in ${first!.id}`)] : []),
          '',
          'What to do next:',
          `  forkd shell ${first!.id}`,
          `  forkd eval ${first!.id} -- '1 + 1'`,
          `  forkd run --tag ${TAG} -- uname -a`,
          `  forkd kill ${first!.id}`,
        ].join('\n'),
      );
    } catch (error) {
      await Promise.allSettled(sandboxes.map((sandbox) => sandbox.kill()));
      throw error;
    }
    if (output.isJson || flags.yes || !process.stdin.isTTY || !process.stdout.isTTY) return 0;
    output.say('\nA shell in it:');
    return openShell(context, first!);
  },
});

/** Debian packages that are not there yet. */
async function missingPackages(): Promise<string[]> {
  const { stdout } = await promisify(execFile)(SETUP, ['list']);
  return stdout.split('\n').filter((name) => name !== '');
}

async function plan(
  { env, signal }: Context,
  daemon: Forkd | undefined,
  packages: string[],
  recipe: string,
): Promise<string[]> {
  const changes: string[] = [];
  if (packages.length > 0) changes.push(`install the Debian packages ${packages.join(', ')}`);
  const data = dataDirectory(env);
  if (!daemon && !existsSync(data)) changes.push(`make the data directory ${data}`);
  if (!daemon) changes.push('start a daemon');
  const tags = daemon ? (await daemon.snapshots.list({ signal })).map((snapshot) => snapshot.tag) : [];
  const isThere = daemon ? tags.includes(TAG) : existsSync(`${data}/snapshots/${TAG}`);
  if (!isThere) changes.push(`make the snapshot ${TAG} from the recipe ${recipe} (downloads packages the first time)`);
  return changes;
}

async function consent({ output, signal }: Context, changes: readonly string[]): Promise<void> {
  output.say(['This will', ...changes.map((change) => `  - ${change}`)].join('\n'));
  const refused = new ForkdError('cancelled', 'nothing was changed', { hint: 'Agree with y, or give --yes.' });
  if (!process.stdin.isTTY)
    throw new ForkdError('not_permitted', 'nobody is there to agree', { hint: 'Give --yes to do it without asking.' });
  const questions = createInterface({ input: process.stdin, output: process.stderr });
  try {
    if (!/^y(es)?$/i.test((await questions.question('Go on? [y/N] ', { signal })).trim())) throw refused;
  } finally {
    questions.close();
  }
}

async function install(): Promise<void> {
  const setup = spawn(SETUP, [], { stdio: ['ignore', 'inherit', 'inherit'] });
  const code = await new Promise((resolve, reject) => setup.once('exit', resolve).once('error', reject));
  if (code !== 0)
    throw new ForkdError('host_unfit', 'the packages could not be installed', {
      hint: 'The installer says why above.',
    });
}

import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { ERRORS, type LineageNode } from '@forkd/protocol';
import { describe, expect, it } from 'vitest';
import { closest } from './closest.js';
import { tree } from './commands/lineage.js';
import { COMMANDS } from './commands.js';
import { completionScript, SHELLS } from './completion.js';
import { safeName } from './copy.js';
import { Escape } from './escape.js';
import { EXIT_CODES } from './exit-codes.js';
import { helpOf } from './help.js';
import { Output } from './output.js';
import { parseArguments } from './parse-arguments.js';
import { forkd } from './testing.js';

/** A port nobody listens on. */
const NOWHERE = { FORKD_URL: 'http://127.0.0.1:1' };
const ID = 'sb-0123456789abcdefghij';

describe('the command line', () => {
  it('help lists every command and ends well', async () => {
    for (const args of [['help'], ['--help'], ['-h']]) {
      const { code, stdout, stderr } = await forkd(args);
      expect([code, stderr]).toEqual([0, '']);
      for (const { name, summary } of COMMANDS)
        expect(stdout).toMatch(new RegExp(`^  ${name} +${escaped(summary)}$`, 'm'));
    }
  });

  it.each(COMMANDS.map((command) => [command.name, command] as const))(
    '%s has help with all its flags',
    (name, command) => {
      const help = helpOf(command);
      expect(help).toContain(`forkd ${name}`);
      for (const flag of Object.keys(command.flags))
        expect(help).toContain(flag.length === 1 ? `-${flag}` : `--${flag}`);
    },
  );

  it('help never shows a secret of the environment (class 6)', async () => {
    const token = 'a-very-secret-token-of-mine';
    for (const name of ['spawn', 'ls', 'serve']) {
      const { stdout, stderr } = await forkd([name, '--help'], { env: { FORKD_TOKEN: token } });
      expect(stdout + stderr).not.toContain(token);
    }
  });

  it.each([
    [[], 'command is missing'],
    [['spwn'], 'forkd spawn'],
    [['pull', 'x'], 'unknown command'],
    [['workspace'], 'workspace create'],
    [['spawn'], '--tag'],
    [['spawn', '--tag', '../x'], 'not a tag'],
    [['spawn', '--tag', 'x', '-n', '0'], '1 to 1000'],
    [['spawn', '--tag', 'x', '-n', '1e3'], '1 to 1000'],
    [['spawn', '--tag', 'x', '--colour'], "unknown flag '--colour'"],
    [['spawn', '--tag', 'x', '--hugepages'], '--live-fork'],
    [['spawn', '--tag', 'x', '-e', 'novalue'], 'NAME=VALUE'],
    [['kill'], 'give ids, or --all'],
    [['kill', ID, '--all'], 'only one'],
    [['kill', '../snapshots/x'], 'not a sandbox id'],
    [['rmi', 'a', '--cascade', '--force'], 'exclude'],
    [['rmi'], 'TAG is missing'],
    [['exec', ID], 'program to run is missing'],
    [['exec', 'nonsense', '--', 'ls'], 'not a sandbox id'],
    [['exec', ID, 'ls', '-la'], 'go after `--`'],
    [['eval', ID], 'code is missing'],
    [['run', '--', 'ls'], '--recipe NAME or --tag TAG'],
    [['snapshot', '--tag', 'x'], '--recipe'],
    [['ls', 'extra'], 'unexpected argument'],
    [['ls', '--state', 'asleep'], 'none of'],
    [['cp', 'a', 'b'], 'ID:/path'],
    [['cp', `${ID}:/a`, `${ID}:/b`], 'ID:/path'],
    [['completion'], 'which shell'],
    [['completion', 'tcsh'], 'none of bash, zsh, fish'],
  ])('%j is a wrong line: exit code 2 and a hint', async (args, words) => {
    const { code, stdout, stderr } = await forkd(args, { env: NOWHERE });
    expect([code, stdout]).toEqual([2, '']);
    expect(stderr).toMatch(/^error: .*\nhint: /);
    expect(stderr).toContain(words);
  });

  it('errors are JSON with --json, and nothing else is', async () => {
    const { code, stdout, stderr } = await forkd(['ls', '--json'], { env: NOWHERE });
    expect([code, stdout]).toEqual([6, '']);
    expect(JSON.parse(stderr)).toMatchObject({
      code: 'unreachable',
      error: expect.any(String),
      hint: expect.any(String),
    });
    expect(JSON.parse((await forkd(['ls', '--json', '--nonsense'])).stderr)).toMatchObject({ code: 'invalid_request' });
  });

  it('a flag beats the environment', () => {
    const ls = COMMANDS.find(({ name }) => name === 'ls')!;
    const env = { FORKD_URL: 'http://env' };
    expect(parseArguments(ls, [], env).common['daemon-url']).toBe('http://env');
    expect(parseArguments(ls, ['--daemon-url', 'http://flag'], env).common['daemon-url']).toBe('http://flag');
  });

  it('what comes after -- is left alone', () => {
    const exec = COMMANDS.find(({ name }) => name === 'exec')!;
    const { operands, rest, flags } = parseArguments(exec, [ID, '--cwd', '/', '--', 'sh', '-c', '--json', '--'], {});
    expect([operands, rest, flags.json]).toEqual([[ID], ['sh', '-c', '--json', '--'], false]);
  });

  it('where says where a local daemon keeps its data', async () => {
    expect((await forkd(['where'], { env: { FORKD_DATA: '/some/where' } })).stdout).toBe('/some/where\n');
    expect(JSON.parse((await forkd(['where', '--json'], { env: { FORKD_DATA: '/d' } })).stdout)).toEqual({
      ...{ data: '/d', socket: '/d/forkd.sock', log: '/d/daemon.log' },
    });
  });

  it('version works without a daemon', async () => {
    const { code, stdout } = await forkd(['--version'], { env: NOWHERE });
    expect([code, stdout]).toEqual([0, expect.stringMatching(/^forkd \d+\.\d+\.\d+\ndaemon does not answer\n$/)]);
  });
});

describe('completion', () => {
  it.each(SHELLS)('the script for %s knows every command and flag', (shell) => {
    const script = completionScript(shell, COMMANDS);
    for (const { name, flags } of COMMANDS) {
      for (const word of name.split(' ')) expect(script).toContain(word);
      for (const flag of Object.keys(flags)) expect(script).toContain(flag);
    }
  });

  it.each(SHELLS)('%s accepts its script', (shell) => {
    const check = spawnSync(shell, ['-n'], { input: completionScript(shell, COMMANDS), encoding: 'utf8' });
    // A shell that is not installed cannot be asked.
    if (check.error === undefined) expect([check.status, check.stderr]).toEqual([0, '']);
  });

  it('bash offers commands, flags and second words', () => {
    const ask = (...words: string[]): string[] => {
      const line = `${completionScript('bash', COMMANDS)}
COMP_WORDS=(forkd ${words.map((word) => `'${word}'`).join(' ')}); COMP_CWORD=${words.length}; _forkd; printf '%s\\n' "\${COMPREPLY[@]}"`;
      return spawnSync('bash', ['-c', line], { encoding: 'utf8' }).stdout.trim().split('\n');
    };
    expect(ask('sna')).toEqual(['snapshot', 'snapshot-info', 'snapshot-diff', 'snapshot-compact']);
    expect(ask('spawn', '--mem')).toEqual(['--memory-limit-mib']);
    expect(ask('workspace', 's')).toEqual(['suspend']);
    expect(ask('workspace', 'suspend', '--d')).toContain('--diff');
  });
});

describe('the parts', () => {
  it('finds the closest word, and none where none is close', () => {
    expect(closest('snapshto', ['snapshot', 'spawn'])).toBe('snapshot');
    expect(closest('xyzzy', ['snapshot', 'spawn'])).toBeUndefined();
  });

  it('Enter ~ . leaves a terminal, also in pieces; ~ elsewhere is a letter', () => {
    const typed = (...pieces: string[]): [string, boolean] => {
      const wayOut = new Escape();
      const fed = pieces.map((piece) => wayOut.feed(Buffer.from(piece)));
      return [fed.map(({ send }) => Buffer.from(send).toString()).join(''), fed.some(({ isLeaving }) => isLeaving)];
    };
    expect(typed('ls\r', '~', '.')).toEqual(['ls\r', true]);
    expect(typed('~.')).toEqual(['', true]);
    expect(typed('cd ~.\r')).toEqual(['cd ~.\r', false]);
    expect(typed('\r~/bin\r')).toEqual(['\r~/bin\r', false]);
    expect(typed('\r~~.')).toEqual(['\r~~.', false]);
  });

  it.each(['', '.', '..', '../x', 'a/b', 'a\0b', '/etc/passwd'])('the file name %j of a guest is refused', (name) => {
    expect(() => safeName(name)).toThrowError(expect.objectContaining({ code: 'guest_protocol' }));
  });

  it('tables are aligned, plain where nobody sees colours, and free of control characters', () => {
    const stream = (isTTY: boolean) => ({ isTTY }) as never;
    const output = (isTTY: boolean, env = {}) =>
      new Output({ stdout: stream(isTTY), stderr: stream(isTTY), isJson: false, env });
    const rows = [
      ['a', 'b\u001b[31m'],
      ['long name', null],
    ];
    expect(output(false).table(['NAME', 'VALUE'], rows)).toBe('NAME       VALUE\na          b?[31m\nlong name  -');
    expect(output(true).table(['NAME', 'VALUE'], rows)).toContain('\u001b[1m');
    expect(output(true, { NO_COLOR: '1' }).table(['NAME', 'VALUE'], rows)).not.toContain('\u001b');
  });

  it('a lineage is a tree; a circle or a missing parent does no harm', () => {
    const node = (name: string, parent: string | null): LineageNode => ({
      ...{ kind: 'snapshot', name, parent, state: 'ready', created_at_unix: 0, owner: 'local' },
    });
    const names = (nodes: LineageNode[]): string[] =>
      tree(nodes)
        .split('\n')
        .map((line) => line.split('  snapshot')[0]!);
    expect(names([node('a', null), node('b', 'a'), node('c', 'b'), node('d', 'a')])).toEqual([
      'a',
      '├─ b',
      '│  └─ c',
      '└─ d',
    ]);
    expect(names([node('a', 'gone'), node('x', 'y'), node('y', 'x')]).length).toBe(3);
  });
});

describe('docs/cli.md', () => {
  const text = readFileSync(fileURLToPath(new URL('../../../docs/cli.md', import.meta.url)), 'utf8');

  it.each(COMMANDS.map(({ name }) => name))('describes %s', (name) => {
    expect(text).toContain(`\`${name}`);
  });

  it('has the exit code of every error', () => {
    expect(Object.keys(EXIT_CODES).sort()).toEqual(Object.keys(ERRORS).sort());
    for (const [code, exit] of Object.entries(EXIT_CODES))
      if (exit !== 1) expect(text).toMatch(new RegExp(`^\\| ${exit} \\|.*\`${code}\``, 'm'));
  });
});

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}

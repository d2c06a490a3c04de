import type { Command, Flags } from './command.js';
import { COMMON } from './parse-arguments.js';

const GROUPS: Record<Command['group'], string> = {
  start: 'Start here',
  snapshots: 'Snapshots',
  sandboxes: 'Sandboxes',
  daemon: 'Daemon and host',
};

export function overview(commands: readonly Command[]): string {
  const width = Math.max(...commands.map(({ name }) => name.length));
  const groups = Object.entries(GROUPS).map(([group, title]) => {
    const own = commands.filter((command) => command.group === group);
    return [`${title}:`, ...own.map(({ name, summary }) => `  ${name.padEnd(width)}  ${summary}`)].join('\n');
  });
  return [
    'fork() for AI-agent microVMs',
    'Usage: forkd COMMAND [FLAGS]',
    ...groups,
    'Every command takes --json and --help. More: docs/cli.md',
  ].join('\n\n');
}

export function helpOf(command: Command): string {
  const { name, summary, examples = [] } = command;
  const parts = [summary, `Usage: forkd ${name}${synopsis(command)}`];
  parts.push(`Flags:\n${flagLines({ ...command.flags, ...COMMON })}`);
  if (examples.length > 0) parts.push(`Examples:\n${examples.map((line) => `  ${line}`).join('\n')}`);
  return parts.join('\n\n');
}

function synopsis({ operands = [], rest }: Command): string {
  const words = operands.map(({ name, isOptional, isMany }) => {
    const word = isMany ? `${name}...` : name;
    return isOptional ? ` [${word}]` : ` ${word}`;
  });
  return ` [FLAGS]${words.join('')}${rest === undefined ? '' : ` [-- ${rest}...]`}`;
}

/** Names of variables, never their values: a token must not get onto a screen by asking for help. */
function flagLines(flags: Flags): string {
  const rows = Object.entries(flags).map(([name, flag]) => {
    const short = flag.short === undefined ? '    ' : `-${flag.short}, `;
    const notes = [
      flag.isRequired && 'required',
      flag.isMany && 'repeatable',
      flag.env && `env ${flag.env}`,
      typeof flag.fallback === 'number' || typeof flag.fallback === 'string' ? `default ${flag.fallback}` : false,
    ].filter((note) => note);
    const long = name.length === 1 ? `-${name}` : `--${name}`;
    const spelling = name.length === 1 ? `${long}` : `${short}${long}`;
    const value = flag.placeholder === undefined ? '' : ` ${flag.placeholder}`;
    return [`  ${spelling}${value}`, `${flag.help}${notes.length > 0 ? ` (${notes.join(', ')})` : ''}`] as const;
  });
  const width = Math.max(...rows.map(([spelling]) => spelling.length));
  return rows.map(([spelling, text]) => `${spelling.padEnd(width)}  ${text}`).join('\n');
}

import type { Command, Completion, Flags } from './command.js';
import { COMMON } from './parse-arguments.js';

export const SHELLS = ['bash', 'zsh', 'fish'] as const;

/** A script for a shell, made from the table of commands. Names of tags and sandboxes are asked for as they are needed. */
export function completionScript(shell: (typeof SHELLS)[number], commands: readonly Command[]): string {
  return { bash, zsh, fish }[shell](commands);
}

function bash(commands: readonly Command[]): string {
  const cases = commands.map((command) => {
    const flags = Object.entries(flagsOf(command));
    const dynamic = flags
      .filter(([, { complete }]) => complete !== undefined)
      .map(([name, { complete }]) => `      ${spelled(name)}) ${offer(complete!)} ;;`);
    const plain = flags.map(([name]) => spelled(name)).join(' ');
    const kind = command.operands?.find(({ complete }) => complete)?.complete;
    return `    '${command.name}')
      case "$previous" in
${[...dynamic, `      *) if [[ $word == -* ]]; then COMPREPLY=($(compgen -W '${plain}' -- "$word")); else ${kind ? offer(kind) : ':'}; fi ;;`].join('\n')}
      esac ;;`;
  });
  return `# bash completion of forkd: source <(forkd completion bash)
_forkd() {
  local word=\${COMP_WORDS[COMP_CWORD]} previous=\${COMP_WORDS[COMP_CWORD-1]} name=\${COMP_WORDS[1]}
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W '${firstWords(commands).join(' ')}' -- "$word")); return; fi
${families(commands)
  .map(
    ([first, seconds]) =>
      `  if [[ $name == ${first} ]]; then
    if ((COMP_CWORD == 2)); then COMPREPLY=($(compgen -W '${seconds.join(' ')}' -- "$word")); return; fi
    name="${first} \${COMP_WORDS[2]}"
  fi`,
  )
  .join('\n')}
  case "$name" in
${cases.join('\n')}
  esac
}
complete -F _forkd forkd
`;

  function offer(kind: Completion): string {
    if (kind === 'files') return 'COMPREPLY=($(compgen -f -- "$word"))';
    return `COMPREPLY=($(compgen -W "$(forkd completion --list ${kind} 2>/dev/null)" -- "$word"))`;
  }
}

function zsh(commands: readonly Command[]): string {
  const quote = (text: string): string =>
    text.replaceAll("'", "'\\''").replaceAll('[', '\\[').replaceAll(']', '\\]').replaceAll(':', '\\:');
  const action = (kind: Completion | undefined): string =>
    kind === undefined
      ? ' '
      : kind === 'files'
        ? '_files'
        : `{_values ${kind} $(forkd completion --list ${kind} 2>/dev/null)}`;
  const cases = commands.map((command) => {
    const flags = Object.entries(flagsOf(command)).map(([name, flag]) => {
      const value = flag.placeholder === undefined ? '' : `:${quote(flag.placeholder)}:${action(flag.complete)}`;
      return `'${flag.isMany ? '*' : ''}${spelled(name)}[${quote(flag.help)}]${value}'`;
    });
    const operands = (command.operands ?? []).map(
      ({ name, isMany, complete }) => `'${isMany ? '*' : ''}:${name}:${action(complete)}'`,
    );
    return `    '${command.name}') _arguments ${[...flags, ...operands].join(' ')} ;;`;
  });
  const described = commands
    .filter(({ name }) => !name.includes(' '))
    .map(({ name, summary }) => `'${name}:${quote(summary)}'`);
  const groups = families(commands);
  return `#compdef forkd
# zsh completion of forkd: source <(forkd completion zsh)
_forkd() {
  local name=\${words[2]}
  if ((CURRENT == 2)); then
    local -a commands=(${[...described, ...groups.map(([first]) => `'${first}'`)].join(' ')})
    _describe command commands
    return
  fi
  shift words; ((CURRENT--))
${groups
  .map(
    ([first, seconds]) => `  if [[ $name == ${first} ]]; then
    if ((CURRENT == 2)); then _values command ${seconds.join(' ')}; return; fi
    name="${first} \${words[2]}"; shift words; ((CURRENT--))
  fi`,
  )
  .join('\n')}
  case "$name" in
${cases.join('\n')}
  esac
}
compdef _forkd forkd
`;
}

function fish(commands: readonly Command[]): string {
  const quote = (text: string): string => `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`;
  const lines = ['# fish completion of forkd: forkd completion fish | source', 'complete -c forkd -f'];
  for (const [first, seconds] of families(commands)) {
    lines.push(`complete -c forkd -n __fish_use_subcommand -a ${first}`);
    lines.push(`complete -c forkd -n '__fish_seen_subcommand_from ${first}' -a ${quote(seconds.join(' '))}`);
  }
  for (const command of commands) {
    const [first, second] = command.name.split(' ');
    const seen = [first, second].filter((word) => word).map((word) => `__fish_seen_subcommand_from ${word}`);
    const when = `-n ${quote(seen.join('; and '))}`;
    if (second === undefined)
      lines.push(`complete -c forkd -n __fish_use_subcommand -a ${first} -d ${quote(command.summary)}`);
    for (const [name, flag] of Object.entries(flagsOf(command))) {
      const value = flag.placeholder === undefined ? '' : ` -r${source(flag.complete)}`;
      lines.push(`complete -c forkd ${when} ${name.length === 1 ? '-s' : '-l'} ${name}${value} -d ${quote(flag.help)}`);
    }
    const kind = command.operands?.find(({ complete }) => complete)?.complete;
    if (kind) lines.push(`complete -c forkd ${when}${source(kind)}`);
  }
  return `${lines.join('\n')}\n`;

  function source(kind: Completion | undefined): string {
    if (kind === undefined) return '';
    return kind === 'files' ? ' -F' : ` -a '(forkd completion --list ${kind} 2>/dev/null)'`;
  }
}

function flagsOf(command: Command): Flags {
  return command.isPassThrough ? {} : { ...command.flags, ...COMMON };
}

function spelled(name: string): string {
  return name.length === 1 ? `-${name}` : `--${name}`;
}

function firstWords(commands: readonly Command[]): string[] {
  return [...new Set(commands.map(({ name }) => name.split(' ')[0]!))];
}

/** Commands of two words: the first, and what may follow it. */
function families(commands: readonly Command[]): [string, string[]][] {
  const two = commands.map(({ name }) => name.split(' ')).filter(({ length }) => length === 2);
  return [...new Set(two.map(([first]) => first!))].map((first) => [
    first,
    two.filter(([other]) => other === first).map(([, second]) => second!),
  ]);
}

import { once } from 'node:events';
import type { Writable } from 'node:stream';
import type { ForkdError } from '@forkd/protocol';

export interface OutputOptions {
  stdout: Writable & { isTTY?: boolean; columns?: number };
  stderr: Writable & { isTTY?: boolean; columns?: number };
  isJson: boolean;
  env: NodeJS.ProcessEnv;
}

type Colour = 'green' | 'red' | 'yellow' | 'dim' | 'bold';
const CODES: Record<Colour, number> = { bold: 1, dim: 2, red: 31, green: 32, yellow: 33 };

/** Results go to stdout, everything else to stderr. */
export class Output {
  readonly isJson: boolean;
  readonly #stdout: OutputOptions['stdout'];
  readonly #stderr: OutputOptions['stderr'];
  readonly #env: NodeJS.ProcessEnv;
  #isOnLine = false;

  constructor({ stdout, stderr, isJson, env }: OutputOptions) {
    this.#stdout = stdout;
    this.#stderr = stderr;
    this.isJson = isJson;
    this.#env = env;
  }

  /** The one result of a verb: `value` for machines, `show` for people. */
  async result(value: unknown, show: () => string): Promise<void> {
    await this.print(this.isJson ? JSON.stringify(value, null, 2) : show());
  }

  /** A line of the result. */
  async print(line: string): Promise<void> {
    if (line !== '') await this.write('stdout', `${line}\n`);
  }

  /** Bytes as they are; waits for a slow reader. */
  async write(stream: 'stdout' | 'stderr', data: string | Uint8Array): Promise<void> {
    const target = stream === 'stdout' ? this.#stdout : this.#stderr;
    if (!target.write(data) && !target.destroyed) await once(target, 'drain').catch(() => {});
  }

  /** For people who watch. */
  say(line: string): void {
    this.endProgress();
    this.#stderr.write(`${line}\n`);
  }

  error({ message, code, hint, details }: ForkdError): void {
    this.endProgress();
    const { request_id } = details;
    const body = { error: message, code, hint, ...(request_id === undefined ? {} : { request_id }) };
    this.#stderr.write(
      this.isJson
        ? `${JSON.stringify(body)}\n`
        : `${this.paint('red', 'error:', this.#stderr)} ${clean(message)}\nhint: ${clean(hint)}\n`,
    );
  }

  /** On a terminal one line that changes, elsewhere a line per step. */
  progress(line: string, fraction?: number): void {
    if (this.#stderr.isTTY) {
      const width = (this.#stderr.columns ?? 80) - 1;
      this.#stderr.write(
        `\r\u001b[K${`${fraction === undefined ? '' : `${bar(fraction)} `}${clean(line)}`.slice(0, width)}`,
      );
      this.#isOnLine = true;
    } else if (fraction === undefined) this.#stderr.write(`${clean(line)}\n`);
  }

  endProgress(): void {
    if (this.#isOnLine) this.#stderr.write('\r\u001b[K');
    this.#isOnLine = false;
  }

  /** Plain where nobody sees colours or somebody does not want them. */
  paint(colour: Colour, text: string, stream: { isTTY?: boolean } = this.#stdout): string {
    if (!stream.isTTY || this.#env.NO_COLOR || this.#env.TERM === 'dumb') return text;
    return `\u001b[${CODES[colour]}m${text}\u001b[0m`;
  }

  good(text: string): string {
    return `${this.paint('green', '✓')} ${text}`;
  }

  bad(text: string): string {
    return `${this.paint('red', '✗')} ${text}`;
  }

  /** Aligned columns. */
  table(head: readonly string[], rows: readonly (readonly (string | number | null | undefined)[])[]): string {
    const cells = rows.map((row) => row.map((cell) => clean(String(cell ?? '-')) || '-'));
    const widths = head.map((title, i) => Math.max(title.length, ...cells.map((row) => row[i]!.length)));
    const line = (row: readonly string[]): string =>
      row
        .map((cell, i) => cell.padEnd(widths[i]!))
        .join('  ')
        .trimEnd();
    return [this.paint('bold', line(head)), ...cells.map(line)].join('\n');
  }
}

/** What others wrote must not steer the terminal. */
export function clean(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what must not get through.
  return text.replace(/[\u0000-\u001f\u007f-\u009f]/g, (char) => (char === '\n' || char === '\t' ? ' ' : '?'));
}

function bar(fraction: number): string {
  const filled = Math.round(24 * Math.min(1, Math.max(0, fraction)));
  return `${'█'.repeat(filled)}${'░'.repeat(24 - filled)} ${String(Math.round(fraction * 100)).padStart(3)}%`;
}

import type { Context } from './context.js';

/** What a shell can offer where a name is expected. */
export type Completion = 'tags' | 'sandboxes' | 'recipes' | 'files';

export interface Flag<T> {
  help: string;
  /** What stands for the value in help; a flag without one is a switch. */
  placeholder?: string;
  short?: string;
  /** Variable of the environment that stands in; its value is never shown. */
  env?: string;
  isRequired?: boolean;
  isMany?: boolean;
  fallback?: T;
  complete?: Completion;
  read(text: string): unknown;
}

// biome-ignore lint/suspicious/noExplicitAny: a flag of any value is what a table of flags holds.
export type Flags = Record<string, Flag<any>>;
export type Values<F extends Flags> = { [Name in keyof F]: F[Name] extends Flag<infer T> ? T : never };

/** One argument that is not a flag. */
export interface Operand {
  name: string;
  isOptional?: boolean;
  isMany?: boolean;
  complete?: Completion;
}

export interface Input<F extends Flags> {
  flags: Values<F>;
  operands: string[];
  /** What comes after `--`. */
  rest: string[];
}

/** One verb. The table of them drives parsing, help and completion. */
export interface Command<F extends Flags = Flags> {
  name: string;
  group: 'start' | 'snapshots' | 'sandboxes' | 'daemon';
  summary: string;
  operands?: readonly Operand[];
  /** Name of what may come after `--`. */
  rest?: string;
  flags: F;
  /** Hands every argument on as it is. */
  isPassThrough?: boolean;
  examples?: readonly string[];
  /** Gives the exit code. @default 0 */
  run(context: Context, input: Input<F>): Promise<number | undefined> | Promise<void>;
}

/** Lets the types of the flags reach `run`. */
export function command<F extends Flags>(definition: Command<F>): Command {
  return definition;
}

interface Extra {
  short?: string;
  env?: string;
  complete?: Completion;
}

export function toggle(help: string, extra: Extra = {}): Flag<boolean> {
  return { help, fallback: false, read: () => true, ...extra };
}

type Read<T> = (text: string) => T;

export function option<T>(placeholder: string, read: Read<T>, help: string, extra: Extra & { fallback: T }): Flag<T>;
export function option<T>(
  placeholder: string,
  read: Read<T>,
  help: string,
  extra: Extra & { isRequired: true },
): Flag<T>;
export function option<T>(placeholder: string, read: Read<T>, help: string, extra?: Extra): Flag<T | undefined>;
export function option<T>(placeholder: string, read: Read<T>, help: string, extra: Extra = {}): Flag<T | undefined> {
  return { placeholder, read, help, ...extra };
}

/** A flag that may be given several times. */
export function options<T>(placeholder: string, read: Read<T>, help: string, extra: Extra = {}): Flag<T[]> {
  return { placeholder, read, help, isMany: true, fallback: [], ...extra };
}

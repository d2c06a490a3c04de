import type { Forkd } from '@forkd/sdk';
import type { Output } from './output.js';

/** What a verb works with. */
export interface Context {
  output: Output;
  /** Aborts when the user or the reader of the output wants no more. */
  signal: AbortSignal;
  env: NodeJS.ProcessEnv;
  /** The daemon that was named, if one was. */
  url: string | undefined;
  /** The daemon, started first if this user may and none runs. */
  daemon(): Promise<Forkd>;
  /** The daemon if one runs. */
  runningDaemon(): Promise<Forkd | undefined>;
}

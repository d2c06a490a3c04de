import { ForkdError } from '@forkd/protocol';

/** The command line itself is wrong: exit code 2. */
export function usage(message: string, hint = 'See `forkd help`.'): ForkdError {
  return new ForkdError('invalid_request', message, { hint });
}

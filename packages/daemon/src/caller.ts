import type { Role } from '@forkd/protocol';

/** Who makes a request: the name of its token, which is also the owner of whatever it creates. */
export interface Caller {
  name: string;
  role: Role;
}

/** Who calls where nobody is asked: on loopback without a token, and on the Unix socket. */
export const LOCAL: Caller = Object.freeze({ name: 'local', role: 'admin' });

declare module 'fastify' {
  interface FastifyRequest {
    caller: Caller;
  }
}

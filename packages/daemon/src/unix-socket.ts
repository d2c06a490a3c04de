import { lstatSync, unlinkSync } from 'node:fs';
import type { Server } from 'node:http';
import { connect } from 'node:net';
import { ForkdError } from '@forkd/protocol';

/** Only its owner can open the socket. What a dead daemon left is replaced; a living one, or another file, is not. */
export async function listenOnSocket(server: Server, path: string): Promise<void> {
  await removeStale(path);
  await new Promise<void>((resolve, reject) => {
    server.once('error', (thrown: NodeJS.ErrnoException) =>
      reject(
        new ForkdError('host_unfit', `cannot listen on ${path}: ${thrown.code ?? thrown.message}`, {
          hint: 'The folder of --socket must exist and be writable.',
          cause: thrown,
        }),
      ),
    );
    // The file is made within this call, so there is no moment at which others could open it.
    const before = process.umask(0o177);
    try {
      server.listen({ path }, resolve);
    } finally {
      process.umask(before);
    }
  });
}

async function removeStale(path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (!found) return;
  if (!found.isSocket())
    throw new ForkdError('host_unfit', `${path} exists and is not a socket`, { hint: 'Choose another --socket.' });
  if (await answers(path))
    throw new ForkdError('host_unfit', `a daemon is listening on ${path} already`, {
      hint: 'Use that one, end it first, or choose another --socket.',
    });
  unlinkSync(path);
}

function answers(path: string): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const socket = connect(path);
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', ({ code }: NodeJS.ErrnoException) => {
      // Nobody listens, or it has just gone.
      if (code === 'ECONNREFUSED' || code === 'ENOENT') resolve(false);
      else reject(new ForkdError('host_unfit', `cannot tell whether a daemon listens on ${path}: ${code}`));
    });
  });
}

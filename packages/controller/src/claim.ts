import { once } from 'node:events';
import { stat } from 'node:fs/promises';
import { createServer } from 'node:net';
import { ForkdError } from '@forkd/protocol';

/**
 * Makes this process the only one that has claimed the directory, until it ends, however it ends: the name of an abstract
 * socket is taken once, and given back by the kernel.
 */
export async function claim(directory: string): Promise<() => void> {
  const { dev, ino } = await stat(directory);
  const server = createServer((socket) => socket.destroy());
  server.listen(`\0forkd-${dev}-${ino}`);
  try {
    await once(server, 'listening');
  } catch (cause) {
    throw new ForkdError('host_unfit', 'another daemon has this data directory', {
      cause,
      hint: 'Use that one, stop it first, or start this one with another --data.',
    });
  }
  server.unref();
  return () => server.close();
}

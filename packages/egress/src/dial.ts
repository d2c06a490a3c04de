import { connect, type Socket } from 'node:net';

export type Dial = (address: string, port: number) => Socket;

/** No host is tried longer than this, and no more addresses of it than these. */
const DIAL_MS = 8_000;
const MOST_ADDRESSES = 4;

export const dialDirectly: Dial = (address, port) =>
  connect({ host: address, port, allowHalfOpen: true, autoSelectFamily: false });

/** The first of the addresses that answers. */
export async function dialFirst(
  dial: Dial,
  addresses: string[],
  port: number,
): Promise<{ socket: Socket; address: string }> {
  let last: unknown = new Error('there is no address');
  for (const address of addresses.slice(0, MOST_ADDRESSES))
    try {
      return { socket: await connected(dial(address, port)), address };
    } catch (thrown) {
      last = thrown;
    }
  throw last;
}

function connected(socket: Socket): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => socket.destroy(new Error('nobody answers')), DIAL_MS);
    const failed = (error?: Error): void => {
      clearTimeout(timer);
      reject(error ?? new Error('closed'));
    };
    socket.once('error', failed).once('close', failed);
    socket.once('connect', () => {
      clearTimeout(timer);
      socket.off('error', failed).off('close', failed);
      socket.on('error', () => {});
      resolve(socket.setNoDelay(true).setKeepAlive(true, 60_000));
    });
  });
}

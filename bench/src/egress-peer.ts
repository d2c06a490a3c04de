import { type AddressInfo, createServer } from 'node:net';
import { answer } from './egress-answer.js';

// The other end of what goes through the proxy: a process of its own, as a host of the world would be.
const server = createServer({ allowHalfOpen: true }, answer);
server.listen(0, '127.0.0.1', () => process.send?.((server.address() as AddressInfo).port));
process.once('disconnect', () => process.exit());

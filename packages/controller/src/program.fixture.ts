import { QemuEngine } from '@forkd/engine-qemu';
import { HostHelper } from '@forkd/host';
import { Controller } from './controller.js';

/**
 * A program with three children, for tests that look at it from outside: prints who they are, and ends properly at the end of
 * its input.
 */
const [directory = '', tag = '', lasting] = process.argv.slice(2);
const helper = HostHelper.start(lasting ? `${directory}/run/daemon` : '');
const engine = new QemuEngine({ helper });
const controller = await Controller.open(directory, engine, helper, { lasting: lasting === 'lasting' });
const results = await controller.spawn({ tag, n: 3 });
const born = results.map((result) =>
  result.ok ? { id: result.sandbox.id, pid: result.sandbox.vm.pid } : result.error,
);
console.log(JSON.stringify(born));
for await (const _ of process.stdin);
await controller[Symbol.asyncDispose]();
await helper[Symbol.asyncDispose]();

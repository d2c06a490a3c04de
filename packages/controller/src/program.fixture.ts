import { QemuEngine } from '@forkd/engine-qemu';
import { HostHelper } from '@forkd/host';
import { Controller } from './controller.js';

/**
 * A program with three children, for tests that look at it from outside: prints their pids, and ends properly at the end of
 * its input.
 */
const [directory = '', tag = '', bond] = process.argv.slice(2);
const helper = HostHelper.start();
const controller = await Controller.open(directory, new QemuEngine({ helper }), helper);
const results = await controller.spawn({ tag, n: 3, tied: bond !== 'untied' });
console.log(JSON.stringify(results.map((result) => (result.ok ? result.sandbox.vm.pid : result.error.message))));
for await (const _ of process.stdin);
await controller[Symbol.asyncDispose]();
await helper[Symbol.asyncDispose]();

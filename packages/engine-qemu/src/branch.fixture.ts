import { HostHelper } from '@forkd/host';
import { QemuEngine } from './qemu-engine.js';

/**
 * A program that restores an untied VM from the files in a directory, for tests that kill it: `hold` pauses the VM under guard
 * and stays there; `freeze` freezes it again and again. Prints who they are when it has begun.
 */
const [task, from = '', directory = ''] = process.argv.slice(2);
const helper = HostHelper.start();
const vm = await new QemuEngine({ helper }).restore({
  machine: { vcpus: 1, memoryMib: 64, accel: 'tcg' },
  disks: [],
  directory,
  tied: false,
  memory: `${from}/memory.img`,
  state: `${from}/device.state`,
  running: true,
});
const begun = (): void => console.log(JSON.stringify({ pid: vm.pid, startTime: vm.startTime, helper: helper.pid }));
if (task === 'hold')
  await vm.guarded(() => {
    begun();
    return new Promise(() => setInterval(() => {}, 1000));
  });
begun();
for (let time = 0; ; time++) {
  const { value: twin } = await vm.guarded(() => vm.freeze(`${directory}/state-${time % 2}`));
  await twin[Symbol.asyncDispose]();
}

import { engineContract } from '@forkd/engine/contract';
import { HostHelper, nativeBinary } from '@forkd/host';
import { buildInitramfs, buildKernel } from '@forkd/images';
import { afterAll } from 'vitest';
import { QemuEngine } from './qemu-engine.js';

const store = `${process.env.FORKD_DATA ?? '.forkd'}/images`;
const kernel = await buildKernel({ store });
const initramfs = await buildInitramfs(kernel, nativeBinary('forkd-agent'), { store });
const linux = { kernel: kernel.path, initramfs: initramfs.path };
const helper = HostHelper.start();
afterAll(() => helper[Symbol.asyncDispose]());

const engine = new QemuEngine({ helper, proof: linux });
engineContract('qemu', {
  engine: () => engine,
  linux: async () => linux,
});

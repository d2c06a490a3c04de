import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Controller } from '@forkd/controller';
import { QemuEngine } from '@forkd/engine-qemu';
import { HostHelper, nativeBinary } from '@forkd/host';
import { buildInitramfs, buildKernel } from '@forkd/images';
import { asForkdError, ForkdError } from '@forkd/protocol';
import { createApp } from './app.js';
import { readConfig } from './config.js';

const VERSION = '0.1.0';
const RECIPES = fileURLToPath(new URL('../../../recipes', import.meta.url));

try {
  await serve();
} catch (thrown) {
  const error = asForkdError(thrown);
  console.error(`error: ${error.message}\nhint: ${error.hint}`);
  process.exitCode = 1;
}

/** Runs until SIGTERM or SIGINT; then no request is left half done. Sandboxes run on, to be adopted by the next one. */
async function serve(): Promise<void> {
  const config = readConfig(process.argv.slice(2), process.env, RECIPES);
  if (process.getuid?.() !== 0) throw new ForkdError('not_permitted', 'forkd needs root to start VMs');
  const stopped = new Promise<void>((resolve) => {
    process.once('SIGTERM', resolve).once('SIGINT', resolve);
  });
  await using helper = HostHelper.start(`${resolve(config.data)}/run/daemon`);
  const store = `${config.data}/images`;
  const kernel = await buildKernel({ store });
  const { path: initramfs } = await buildInitramfs(kernel, nativeBinary('forkd-agent'), { store });
  const engine = new QemuEngine({ helper, cache: `${config.data}/probe`, proof: { kernel: kernel.path, initramfs } });
  await using controller = await Controller.open(config.data, engine, helper, { lasting: true });
  const app = createApp(controller, config, VERSION);
  await app.listen({ host: config.host, port: config.port });
  const lost = helper.ended.then(() => new ForkdError('internal', 'the host helper ended'));
  const failure = await Promise.race([stopped.then(() => undefined), lost]);
  await app.close();
  if (failure) throw failure;
}

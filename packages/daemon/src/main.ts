import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Controller } from '@forkd/controller';
import { QemuEngine } from '@forkd/engine-qemu';
import { HostHelper, nativeBinary } from '@forkd/host';
import { buildInitramfs, buildKernel } from '@forkd/images';
import { asForkdError, ForkdError } from '@forkd/protocol';
import { createApp } from './app.js';
import { AuditLog } from './audit.js';
import { readConfig } from './config.js';
import { Outlets } from './egress.js';
import { helpText, readFlags } from './flags.js';
import { listen } from './listeners.js';
import { reachOf } from './reach.js';
import { onHangup, stopSignal } from './signals.js';
import { Tokens } from './tokens.js';

const VERSION = '0.1.0';
/** More than a VM needs to be told to go on. */
const ABANDON_MS = 2_000;
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
  const flags = readFlags(process.argv.slice(2), process.env);
  if (flags === 'help') return void process.stdout.write(helpText());
  if (flags === 'version') return console.log(`forkd ${VERSION}`);
  const config = readConfig(flags, RECIPES);
  const tokens = new Tokens(config);
  if (process.getuid?.() !== 0) throw new ForkdError('not_permitted', 'forkd needs root to start VMs');
  // VMMs are users of their own and read what is written here; the directories above keep others out.
  process.umask(0o022);
  const stopped = stopSignal();
  // Until there is something to read again, it must not end the daemon.
  process.on('SIGHUP', () => {});
  const reach = await reachOf(config.data, config.snapshotRoot);
  await using helper = HostHelper.start(`${config.data}/run/daemon`, reach);
  const store = `${config.data}/images`;
  const kernel = await buildKernel({ store });
  const { path: initramfs } = await buildInitramfs(kernel, nativeBinary('forkd-agent'), { store });
  const proof = { kernel: kernel.path, initramfs };
  const { data, jail } = config;
  const engine = new QemuEngine({ helper, cache: `${data}/probe`, scratch: `${data}/run/daemon`, proof, jail });
  const outlets = new Outlets(config, tokens);
  const { snapshotRoot: snapshots, state, branchConcurrency: writers, retention, gcMs, egress } = config;
  const limits = {
    defaults: config.defaultLimits,
    allowUnlimited: config.allowUnlimited,
    overcommit: config.overcommit,
    quotaOf: (owner: string) => tokens.quotaOf(owner),
  };
  const { certificate: authority } = outlets.authority;
  const { policy } = egress;
  const ceilingOf = (owner: string) => tokens.reachOf(owner)?.network;
  const network = { ...config.network, uplink: outlets.egress };
  const places = { snapshots, state };
  const options = { lasting: true, ...places, writers, retention, gcMs, limits, network, policy, ceilingOf, authority };
  await using controller = await Controller.open(config.data, engine, helper, options);
  const audit = new AuditLog(config);
  const app = createApp(controller, config, { tokens, audit, outlets }, VERSION);
  if (config.jail === 'none') app.log.warn('VMMs run as root and in no jail: who breaks out of one has this host');
  const listeners = await listen(app, config);
  onHangup(app.log, {
    tokens: () => tokens.reload(),
    certificate: () => listeners.reload(),
    'audit log': () => audit.reopen(),
  });
  let stopping = false;
  void helper.ended.then(async () => {
    if (stopping) return;
    // Nobody can tell any more how the VMs fare, and nothing can be ended in order: the next daemon takes them over.
    app.log.fatal('the host helper ended; see the kernel log of the host (out of memory?)');
    // A sandbox that stands still while it is branched has nobody else to let it go on.
    await Promise.race([controller.abandonWriters(), sleep(ABANDON_MS)]);
    process.exit(1);
  });
  await stopped;
  stopping = true;
  await listeners.drain();
}

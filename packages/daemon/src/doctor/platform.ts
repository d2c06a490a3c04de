import { access, constants, readFile } from 'node:fs/promises';
import { arch, release } from 'node:os';
import { nativeBinary } from '@forkd/host';
import { type Check, fail, type Outcome, pass, skip, warn } from './check.js';
import { ask } from './program.js';

const OLDEST_NODE = [20, 19] as const;
/** A daemon with a thousand sandboxes keeps a few descriptors open for each. */
const MANY_FILES = 8192;
const FEW_FILES = 1024;

export const platformChecks: Check[] = [
  { name: 'platform', run: platform },
  { name: 'user', run: user },
  { name: 'node', run: () => nodeVersion(process.versions.node) },
  { name: 'native binaries', run: binaries },
  { name: 'open files', run: openFiles },
  { name: 'entropy', run: entropy },
  { name: 'docker', run: docker },
];

function platform(): Outcome {
  const here = `${process.platform} ${release()} ${arch()}`;
  if (process.platform === 'linux' && arch() === 'x64') return pass(here);
  return fail(`${here} cannot run forkd`, 'Use Linux on an x86-64 machine, or a VM of that kind.');
}

function user(): Outcome {
  if (process.geteuid?.() === 0) return pass('root');
  return fail(`uid ${process.geteuid?.()}: forkd needs root to start VMs`, 'Run it with sudo, or as a system service.');
}

export function nodeVersion(version: string): Outcome {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  const recent = major > OLDEST_NODE[0] || (major === OLDEST_NODE[0] && minor >= OLDEST_NODE[1]);
  if (recent) return pass(version);
  return fail(`Node ${version} is too old`, `Install Node ${OLDEST_NODE.join('.')} or newer from nodejs.org.`);
}

async function binaries(): Promise<Outcome> {
  const missing: string[] = [];
  for (const name of ['forkd-host-helper', 'forkd-agent'] as const)
    await access(nativeBinary(name), constants.X_OK).catch(() => missing.push(nativeBinary(name)));
  if (missing.length === 0) return pass('forkd-host-helper, forkd-agent');
  return fail(
    `${missing.join(', ')} is missing or cannot be executed`,
    'Run `make build`, or point FORKD_NATIVE at them.',
  );
}

async function openFiles(): Promise<Outcome> {
  const limits = await readFile('/proc/self/limits', 'utf8');
  // Node raises the soft limit to the hard one when it starts: the hard one is what counts.
  const hard = /^Max open files\s+\d+\s+(\d+|unlimited)/m.exec(limits)?.[1] ?? '0';
  const count = hard === 'unlimited' ? Number.POSITIVE_INFINITY : Number(hard);
  const hint = 'Set LimitNOFILE=65536 in the unit of the daemon, or run `ulimit -Hn 65536` as root before it.';
  if (count >= MANY_FILES) return pass(`${hard} per process`);
  const detail = `only ${hard} open files per process`;
  return count >= FEW_FILES ? warn(`${detail}: enough for some hundred sandboxes`, hint) : fail(detail, hint);
}

async function entropy(): Promise<Outcome> {
  const bits = Number(await readFile('/proc/sys/kernel/random/entropy_avail', 'utf8'));
  if (bits >= 128) return pass(`${bits} bits; each child is seeded from it`);
  return warn(
    `only ${bits} bits: identities of new sandboxes may have to wait`,
    'apt-get install rng-tools5, or give this VM a virtio-rng device.',
  );
}

/** Only forkd's own `from-image` needs it. */
async function docker({ signal }: Parameters<Check['run']>[0]): Promise<Outcome> {
  const said = await ask('docker', ['--version'], signal);
  const found = said.ok ? 'installed' : 'not installed';
  return skip(`${found}; not needed: images are built without Docker`, 'Nothing to do.');
}

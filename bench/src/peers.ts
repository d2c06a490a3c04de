import { execFile } from 'node:child_process';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import { inParallel } from '@forkd/controller';
import { ForkdError } from '@forkd/protocol';

const run = promisify(execFile);

/** The same line as the children evaluate, as a program of its own: containers start cold. */
const COMMANDS = {
  python: ['python3', '-c', 'import numpy; print(numpy.zeros(5).tolist())'],
  node: ['node', '-e', 'console.log(new Array(5).fill(0))'],
};

interface Peer {
  name: 'runc' | 'bwrap' | 'gvisor';
  program: string;
  command: (root: string, bundle: string, id: string) => string[];
}

const PEERS: Peer[] = [
  { name: 'runc', program: 'runc', command: (_, bundle, id) => ['run', '--bundle', bundle, id] },
  {
    name: 'gvisor',
    program: 'runsc',
    command: (_, bundle, id) => ['--network=none', '--ignore-cgroups', 'run', '--bundle', bundle, id],
  },
];

/** Runs n containers, `width` at a time, on the root disk the VMs use; `null` for what is not installed. */
export async function peers(
  base: string,
  scratch: string,
  language: 'python' | 'node',
  n: number,
  width: number,
): Promise<Record<Peer['name'], number | null>> {
  const root = `${scratch}/root`;
  const bundle = `${scratch}/bundle`;
  await mkdir(root, { recursive: true });
  await mkdir(bundle, { recursive: true });
  await run('mount', ['-o', 'loop,ro', base, root]);
  try {
    const program = COMMANDS[language];
    await writeBundle(bundle, root, program);
    const isolated = [
      '--ro-bind',
      root,
      '/',
      '--proc',
      '/proc',
      '--dev',
      '/dev',
      '--tmpfs',
      '/tmp',
      '--unshare-all',
      '--die-with-parent',
    ];
    const bwrap: Peer = { name: 'bwrap', program: 'bwrap', command: () => [...isolated, ...program] };
    const times: Record<string, number | null> = {};
    for (const peer of [...PEERS, bwrap]) times[peer.name] = await measure(peer, root, bundle, n, width);
    return times as Record<Peer['name'], number | null>;
  } finally {
    await run('umount', [root]);
    await rm(scratch, { recursive: true, force: true });
  }
}

async function measure(peer: Peer, root: string, bundle: string, n: number, width: number): Promise<number | null> {
  const installed = await run('sh', ['-c', `command -v ${peer.program}`]).then(
    () => true,
    () => false,
  );
  if (!installed) return null;
  const one = async (index: number): Promise<void> => {
    const { stdout } = await run(peer.program, peer.command(root, bundle, `forkd-bench-${process.pid}-${index}`));
    if (!stdout.includes('0')) throw new ForkdError('internal', `${peer.program} printed ${JSON.stringify(stdout)}`);
  };
  await one(n);
  const start = performance.now();
  await inParallel(n, width, one);
  return performance.now() - start;
}

/** What `runc spec` writes, without a terminal, on the given root. */
async function writeBundle(bundle: string, root: string, args: string[]): Promise<void> {
  await run('runc', ['spec', '--bundle', bundle]);
  const file = `${bundle}/config.json`;
  const spec = JSON.parse(await readFile(file, 'utf8'));
  spec.process.terminal = false;
  spec.process.args = args;
  spec.root = { path: root, readonly: true };
  await writeFile(file, JSON.stringify(spec));
}

import { readFile } from 'node:fs/promises';
import { release } from 'node:os';
import { type Check, fail, type Outcome, pass, skip, warn } from './check.js';

const MANY_MIB = 1024;
const FEW_MIB = 512;
const NOTHING = 'Nothing to do.';

export const memoryChecks: Check[] = [
  { name: 'memory', run: available },
  { name: 'overcommit', run: async () => overcommit((await read('/proc/sys/vm/overcommit_memory')) ?? '0') },
  { name: 'uffd_wp', run: userfaultfd },
  { name: 'memfd_create', run: memfd },
  { name: 'ksm', run: ksm },
  { name: 'hugepages', run: hugepages },
];

async function available(): Promise<Outcome> {
  const mib = Math.floor(Number(await memoryInfo('MemAvailable')) / 1024);
  const hint = 'End other programs, give the machine more memory, or add swap; recipes say how much a guest has.';
  if (mib >= MANY_MIB) return pass(`${mib} MiB available`);
  return mib >= FEW_MIB ? warn(`only ${mib} MiB available`, hint) : fail(`only ${mib} MiB available`, hint);
}

/** Children map the memory of their parent again and again without using it; strict accounting counts all of it. */
export function overcommit(mode: string): Outcome {
  if (mode !== '2') return pass(mode === '1' ? 'always' : 'heuristic');
  return warn(
    'strict accounting counts the memory that children share once for each of them',
    'sysctl -w vm.overcommit_memory=0',
  );
}

async function userfaultfd(): Promise<Outcome> {
  const unused = 'not needed: a branch is a fork of the VMM';
  const known = await read('/proc/sys/vm/unprivileged_userfaultfd');
  if (known === undefined) return skip(`the kernel has no userfaultfd; ${unused}`, NOTHING);
  const [major = 0, minor = 0] = release().split('.').map(Number);
  const protects = major > 5 || (major === 5 && minor >= 7);
  return protects ? pass(`Linux ${major}.${minor} has it; ${unused}`) : skip(`needs Linux 5.7; ${unused}`, NOTHING);
}

function memfd(): Outcome {
  return skip('not needed: the memory of a guest is a file', NOTHING);
}

async function ksm(): Promise<Outcome> {
  const run = await read('/sys/kernel/mm/ksm/run');
  const state = run === undefined ? 'absent' : run === '1' ? 'on' : 'off';
  return pass(`${state}; not needed: children share the pages of their parent from the start`);
}

async function hugepages(): Promise<Outcome> {
  const total = await memoryInfo('HugePages_Total');
  if (Number(total) > 0) return pass(`${total} reserved; not needed`);
  return skip('none reserved; not needed: pages are shared in units of 4 KiB', NOTHING);
}

async function memoryInfo(field: string): Promise<string> {
  return new RegExp(`^${field}:\\s+(\\d+)`, 'm').exec(await readFile('/proc/meminfo', 'utf8'))?.[1] ?? '0';
}

async function read(file: string): Promise<string | undefined> {
  return readFile(file, 'utf8').then(
    (text) => text.trim(),
    () => undefined,
  );
}

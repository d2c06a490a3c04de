import { execFileSync } from 'node:child_process';
import { closeSync, openSync, readdirSync, readFileSync, readSync, statSync, writeSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const PAYLOAD = fileURLToPath(new URL('../payload', import.meta.url));

/** Where payload/counter.S counts, in guest-physical memory. */
const COUNTER = 0x200000;

/** Builds the bare-metal guest that counts. */
export function buildCounter(directory: string): string {
  const [object, payload] = [`${directory}/counter.o`, `${directory}/counter.elf`];
  execFileSync('cc', ['-m32', '-c', `${PAYLOAD}/counter.S`, '-o', object]);
  const link = ['-m', 'elf_i386', '--no-warn-rwx-segments', '-T', `${PAYLOAD}/counter.ld`];
  execFileSync('ld', [...link, object, '-o', payload]);
  return payload;
}

/** The counter of the bare-metal guest, read from outside through the memory of its VMM. */
export function guestCounter(pid: number): number {
  return mapped(pid) === undefined ? 0 : peekGuest(pid, COUNTER, 4).readUInt32LE();
}

/** Guest RAM, read through the memory of the VMM. The offset is one into the memory image. */
export function peekGuest(pid: number, offset: number, length: number): Buffer {
  const memory = openSync(`/proc/${pid}/mem`, 'r');
  try {
    const bytes = Buffer.alloc(length);
    readSync(memory, bytes, 0, length, mapped(pid)! + offset);
    return bytes;
  } finally {
    closeSync(memory);
  }
}

/** Writes to guest RAM as if the guest had. */
export function pokeGuest(pid: number, offset: number, bytes: Buffer): void {
  const memory = openSync(`/proc/${pid}/mem`, 'r+');
  try {
    const written = writeSync(memory, bytes, 0, bytes.length, mapped(pid)! + offset);
    if (written !== bytes.length) throw new Error(`${written} of ${bytes.length} bytes were written to guest RAM`);
  } finally {
    closeSync(memory);
  }
}

/** Where the VMM has the memory image. */
function mapped(pid: number): number | undefined {
  const lines = readFileSync(`/proc/${pid}/maps`, 'utf8').split('\n');
  const range = (line: string): number[] =>
    line
      .split(' ')[0]!
      .split('-')
      .map((text) => Number.parseInt(text, 16));
  const size = (line: string): number => range(line)[1]! - range(line)[0]!;
  // Where the VMM that opened them has ended, and its mounts with it, files have no other name. RAM is the largest.
  const nameless = lines.filter((line) => / rw-p 00000000 .* \/$/.test(line)).sort((a, b) => size(b) - size(a));
  const line = lines.find((entry) => entry.endsWith('memory.img')) ?? nameless[0];
  return line === undefined ? undefined : range(line)[0];
}

/** Processes that have a memory image mapped: its VMs, and their twins. */
export function havingMapped(image: string): number[] {
  const maps = (pid: string): string => {
    try {
      return readFileSync(`/proc/${pid}/maps`, 'utf8');
    } catch {
      return '';
    }
  };
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name));
  const inode = new RegExp(`^\\S+ \\S+ \\S+ \\S+ ${statSync(image).ino} `, 'm');
  return pids.filter((pid) => inode.test(maps(pid))).map(Number);
}

/** Repeats an expectation until it holds; its last failure is the error. */
export async function eventually(expectation: () => void, timeoutMs = 20_000): Promise<void> {
  for (const deadline = Date.now() + timeoutMs; ; ) {
    try {
      return expectation();
    } catch (failure) {
      if (Date.now() > deadline) throw failure;
    }
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

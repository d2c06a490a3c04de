import { closeSync, openSync, readFileSync, readSync } from 'node:fs';

/** Where payload/counter.S counts, in guest-physical memory. */
const COUNTER = 0x200000;

/** The counter of the bare-metal guest, read from outside through the memory of its VMM. */
export function guestCounter(pid: number): number {
  const line = readFileSync(`/proc/${pid}/maps`, 'utf8')
    .split('\n')
    .find((entry) => entry.endsWith('memory.img'));
  if (!line) return 0;
  const start = Number.parseInt(line.split('-')[0]!, 16);
  const memory = openSync(`/proc/${pid}/mem`, 'r');
  try {
    const word = Buffer.alloc(4);
    readSync(memory, word, 0, 4, start + COUNTER);
    return word.readUInt32LE();
  } finally {
    closeSync(memory);
  }
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

import { readFile } from 'node:fs/promises';

const CLOCK = Buffer.from('\x0bmc146818rtc', 'latin1');
const SECTION_FOOTER = 0x7e;
const SECTION_ID_BYTES = 4;

/** Whether two saved states are of the same instant: all but the wall clock, which is brought up to date for each of them. */
export async function sameInstant(first: string, second: string): Promise<boolean> {
  const [a, b] = await Promise.all([first, second].map(async (path) => withoutClock(await readFile(path))));
  return a!.equals(b!);
}

/** A section of the stream is its id, a name, data, and at the end its id again after a mark. */
export function withoutClock(state: Buffer): Buffer {
  const name = state.indexOf(CLOCK);
  if (name < SECTION_ID_BYTES) return state;
  const footer = Buffer.concat([Buffer.of(SECTION_FOOTER), state.subarray(name - SECTION_ID_BYTES, name)]);
  const end = state.indexOf(footer, name);
  return end < 0 ? state : Buffer.concat([state.subarray(0, name), state.subarray(end)]);
}

import { readdir, readFile } from 'node:fs/promises';

/** For tests: the command lines of all other processes that mention `text`, for instance a directory of the test. */
export async function processesNaming(text: string): Promise<string[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid);
  const lines = await Promise.all(pids.map((pid) => readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '')));
  return lines.filter((line) => line.includes(text));
}

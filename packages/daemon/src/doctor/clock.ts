import { readdir, stat } from 'node:fs/promises';
import { type Check, type Host, type Outcome, pass, skip, warn } from './check.js';
import { ask } from './program.js';

const SYNCHRONISE = 'apt-get install systemd-timesyncd && timedatectl set-ntp true';
/** Clocks that are kept right by a daemon move less than this. */
const TOLERANCE_MS = 5_000;

export const clockChecks: Check[] = [{ name: 'clock', run: clock }];

async function clock({ data, signal }: Host): Promise<Outcome> {
  const ahead = (await newest(data)) - Date.now();
  if (ahead > TOLERANCE_MS)
    return warn(`it jumped back: files in ${data} were written ${Math.ceil(ahead / 1000)} s from now`, SYNCHRONISE);
  // The origin was taken from the same clock when this program started; the difference has grown steadily since.
  const jump = Date.now() - (performance.timeOrigin + performance.now());
  if (Math.abs(jump) > TOLERANCE_MS) return warn(`it jumped by ${Math.round(jump / 1000)} s just now`, SYNCHRONISE);
  const synchronised = await isSynchronised(signal);
  const now = new Date().toISOString();
  if (synchronised === undefined) return skip(`${now}; nothing here says whether it is synchronised`, SYNCHRONISE);
  return synchronised ? pass(`${now}, synchronised`) : warn(`${now}, not synchronised`, SYNCHRONISE);
}

async function isSynchronised(signal: AbortSignal): Promise<boolean | undefined> {
  const systemd = await ask('timedatectl', ['show', '--property=NTPSynchronized', '--value'], signal);
  if (systemd.ok) return systemd.output === 'yes';
  const chrony = await ask('chronyc', ['-n', 'tracking'], signal);
  return chrony.ok ? /^Leap status\s*: Normal/m.test(chrony.output) : undefined;
}

async function newest(data: string): Promise<number> {
  const names = await readdir(data).catch(() => []);
  const times = names.map((name) =>
    stat(`${data}/${name}`)
      .then((found) => found.mtimeMs)
      .catch(() => 0),
  );
  return Math.max(0, ...(await Promise.all(times)));
}

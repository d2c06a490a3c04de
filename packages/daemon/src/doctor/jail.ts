import { mkdir, readFile } from 'node:fs/promises';
import { JAIL_UIDS, qemuFiles } from '@forkd/engine-qemu';
import { asForkdError } from '@forkd/protocol';
import { type Check, fail, type Host, type Outcome, pass, skip, warn } from './check.js';

export const jailChecks: Check[] = [{ name: 'jail', seconds: 20, run: jail }];

const HINT =
  'Run as root, not in a container without its capabilities, on Linux 5.12 or newer with namespaces and seccomp. ' +
  '`--no-jail` does without, which is unsafe.';

/** Really runs QEMU in one, which says its version there. */
async function jail({ helper, scratch, probe }: Host): Promise<Outcome> {
  const { available, version } = await probe();
  if (!available) return skip('not tried: there is no QEMU', 'apt-get install qemu-system-x86');
  const directory = `${scratch}/jail`;
  await mkdir(directory);
  const { program, preload, files } = await qemuFiles('qemu-system-x86_64');
  const log = `${directory}/log`;
  try {
    const jailed = await helper.spawn({
      ...{ argv: [program, '--version'], env: { LD_PRELOAD: preload }, log },
      ...{ listen: [], open: [], tied: true, rlimits: {}, cgroups: [] },
      jail: { uids: JAIL_UIDS, directory, read: files, write: [], devices: [] },
    });
    const { code, signal } = await jailed.exited;
    const said = await readFile(log, 'utf8');
    if (code !== 0 || version === null || !said.includes(version))
      return fail(
        `QEMU does not run in a jail (${signal === null ? `code ${code}` : `signal ${signal}`}): ${said}`,
        HINT,
      );
  } catch (thrown) {
    return fail(asForkdError(thrown).message, HINT);
  }
  if (process.env.FORKD_NO_JAIL === '1')
    return warn(
      'FORKD_NO_JAIL is set: VMMs run as root and in no jail',
      'Unset it, and start the daemon without --no-jail.',
    );
  return pass(`QEMU runs as a user of its own from ${JAIL_UIDS.first} on, with its own files and nothing else`);
}

import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { JAIL_UIDS, qemuFiles } from '@forkd/engine-qemu';
import { asForkdError } from '@forkd/protocol';
import { type Check, type Host, type Outcome, pass, skip, warn } from './check.js';

const CAP_SYS_PTRACE = 19n;

export const branchChecks: Check[] = [{ name: 'live branch', seconds: 40, run: liveBranch }];

/** Forks a real emulator that runs no guest, by ptrace, from jail to jail, as children are made. */
async function liveBranch({ helper, scratch, probe }: Host): Promise<Outcome> {
  if (!(await probe()).available) return skip('not tried: there is no QEMU', 'apt-get install qemu-system-x86');
  const [from, to] = [`${scratch}/original`, `${scratch}/copy`];
  for (const directory of [from, to]) await mkdir(directory);
  await writeFile(`${to}/log`, '');
  const { program, preload, files } = await qemuFiles('qemu-system-x86_64');
  const argv = [program, '-machine', 'none', '-nodefaults', '-display', 'none', '-S'];
  const place = { tied: true, cgroups: [] };
  const original = await helper.spawn({
    ...{ argv, env: { LD_PRELOAD: preload }, log: `${from}/log`, listen: [], open: [], rlimits: {}, ...place },
    jail: { uids: JAIL_UIDS, directory: from, read: files, write: [], devices: [] },
  });
  try {
    const copy = await helper.forkVmm(original, { from, to, orders: {}, ...place, jail: JAIL_UIDS });
    await copy.kill();
    return pass('a process was traced and forked; children start from a zygote');
  } catch (thrown) {
    const [reason, hint] = await obstacle(asForkdError(thrown).message);
    return warn(`${reason}: children are restored from files, which is slower`, hint);
  } finally {
    await original.kill();
  }
}

async function obstacle(failure: string): Promise<[reason: string, hint: string]> {
  const scope = (await readFile('/proc/sys/kernel/yama/ptrace_scope', 'utf8').catch(() => '0')).trim();
  const status = await readFile('/proc/self/status', 'utf8');
  const capabilities = BigInt(`0x${/^CapEff:\s*([0-9a-f]+)/m.exec(status)?.[1] ?? '0'}`);
  if (scope === '3') return ['kernel.yama.ptrace_scope is 3', 'sysctl -w kernel.yama.ptrace_scope=1, then reboot'];
  if (((capabilities >> CAP_SYS_PTRACE) & 1n) === 0n)
    return ['CAP_SYS_PTRACE is missing', 'Run as root; in a container: --cap-add SYS_PTRACE'];
  const users = (await readFile('/proc/sys/kernel/unprivileged_userns_clone', 'utf8').catch(() => '1')).trim();
  const confined = '/proc/sys/kernel/apparmor_restrict_unprivileged_userns';
  if (users === '0') return ['user namespaces are switched off', 'sysctl -w kernel.unprivileged_userns_clone=1'];
  if ((await readFile(confined, 'utf8').catch(() => '0')).trim() === '1')
    return ['AppArmor restricts user namespaces', 'sysctl -w kernel.apparmor_restrict_unprivileged_userns=0'];
  return [`an emulator cannot be forked (${failure})`, 'Use the QEMU and C library of Debian 12 or newer.'];
}

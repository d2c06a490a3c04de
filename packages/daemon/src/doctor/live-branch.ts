import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { asForkdError } from '@forkd/protocol';
import { type Check, type Host, type Outcome, pass, skip, warn } from './check.js';

const CAP_SYS_PTRACE = 19n;

export const branchChecks: Check[] = [{ name: 'live branch', seconds: 40, run: liveBranch }];

/** Forks a real emulator that runs no guest, by ptrace, as children and branches are made. */
async function liveBranch({ helper, scratch, probe }: Host): Promise<Outcome> {
  if (!(await probe()).available) return skip('not tried: there is no QEMU', 'apt-get install qemu-system-x86');
  const [from, to] = [`${scratch}/original`, `${scratch}/copy`];
  for (const directory of [from, to]) await mkdir(directory);
  await writeFile(`${to}/log`, '');
  const argv = ['qemu-system-x86_64', '-machine', 'none', '-nodefaults', '-display', 'none', '-S'];
  const env = { PATH: process.env.PATH ?? '/usr/bin:/bin' };
  const place = { tied: true, cgroups: [] };
  const original = await helper.spawn({ argv, env, log: `${from}/log`, listen: [], open: [], rlimits: {}, ...place });
  try {
    const copy = await helper.forkVmm(original, { from, to, orders: {}, ...place });
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
  return [`an emulator cannot be forked (${failure})`, 'Use the QEMU and C library of Debian 12 or newer.'];
}

import { createHash } from 'node:crypto';
import { access, constants, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import type { AccelReport, BootSpec, Vm } from '@forkd/engine';
import { asForkdError } from '@forkd/protocol';
import { z } from 'zod';

/** A guest under working KVM prints this well within a second. */
const DEADLINE_MS = 8_000;
const FIRST_LINE_OF_INIT = 'forkd-agent: init';

const Remembered = z.object({ usable: z.boolean(), reason: z.string() });

interface Proof {
  version: string;
  proof: { kernel: string; initramfs: string };
  cache?: string;
  boot: (spec: BootSpec) => Promise<Vm>;
}

/**
 * `/dev/kvm` may open, and even create VMs, on a host that cannot run an ordinary kernel. So a guest is really run, until its
 * init prints its first line; the answer holds until the host boots again or QEMU or the kernel changes.
 */
export async function proveKvm(options: Proof): Promise<AccelReport> {
  try {
    await access('/dev/kvm', constants.R_OK | constants.W_OK);
  } catch {
    return { usable: false, reason: '/dev/kvm is absent or not accessible' };
  }
  const file = options.cache && `${options.cache}/kvm-${await hostKey(options)}.json`;
  const known = file && (await readFile(file, 'utf8').catch(() => undefined));
  if (known) return Remembered.parse(JSON.parse(known));
  const report = await runGuest(options);
  if (file) {
    await mkdir(options.cache!, { recursive: true });
    await writeFile(file, JSON.stringify(report));
  }
  return report;
}

async function hostKey({ version, proof }: Proof): Promise<string> {
  const boot = await readFile('/proc/sys/kernel/random/boot_id', 'utf8');
  return createHash('sha256').update(`${boot}${version}${proof.kernel}`).digest('hex').slice(0, 16);
}

async function runGuest({ proof, boot }: Proof): Promise<AccelReport> {
  const directory = await mkdtemp(`${tmpdir()}/forkd-kvm-`);
  let vm: Vm | undefined;
  try {
    const machine = { vcpus: 1, memoryMib: 256, accel: 'kvm' as const };
    vm = await boot({ ...proof, machine, disks: [], directory, tied: true, memory: `${directory}/memory.img` });
    const started = await firstLine(vm);
    return started
      ? { usable: true, reason: 'a guest ran under KVM' }
      : { usable: false, reason: `/dev/kvm opens, but a guest did not reach its init within ${DEADLINE_MS} ms` };
  } catch (thrown) {
    return { usable: false, reason: `a guest under KVM failed: ${asForkdError(thrown).message.split('\n')[0]}` };
  } finally {
    await vm?.stop();
    await rm(directory, { recursive: true, force: true });
  }
}

async function firstLine(vm: Vm): Promise<boolean> {
  let ended = false;
  void vm.exited.then(() => {
    ended = true;
  });
  for (const deadline = Date.now() + DEADLINE_MS; Date.now() < deadline && !ended; ) {
    if (vm.console().includes(FIRST_LINE_OF_INIT)) return true;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return vm.console().includes(FIRST_LINE_OF_INIT);
}

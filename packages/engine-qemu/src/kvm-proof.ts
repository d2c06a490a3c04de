import { createHash } from 'node:crypto';
import { access, constants, mkdir, mkdtemp, readFile, realpath, rename, rm, writeFile } from 'node:fs/promises';
import { constants as os } from 'node:os';
import type { AccelReport, BootSpec, Vm, VmExit } from '@forkd/engine';
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
  scratch: string;
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
  if (!report) return { usable: false, reason: 'the guest that should have tried KVM was killed' };
  if (file) {
    await mkdir(options.cache!, { recursive: true });
    // Another program may be reading it.
    await writeFile(`${file}.${process.pid}`, JSON.stringify(report));
    await rename(`${file}.${process.pid}`, file);
  }
  return report;
}

async function hostKey({ version, proof }: Proof): Promise<string> {
  const boot = await readFile('/proc/sys/kernel/random/boot_id', 'utf8');
  // The same kernel may be reached through several data directories.
  const kernel = await realpath(proof.kernel);
  return createHash('sha256').update(`${boot}${version}${kernel}`).digest('hex').slice(0, 16);
}

/** `undefined` when somebody ended it early: then it has shown nothing that is worth remembering. */
async function runGuest({ proof, boot, scratch }: Proof): Promise<AccelReport | undefined> {
  const directory = await mkdtemp(`${scratch}/forkd-kvm-`);
  let vm: Vm | undefined;
  try {
    const machine = { vcpus: 1, memoryMib: 256, accel: 'kvm' as const };
    vm = await boot({ ...proof, machine, disks: [], directory, tied: true, memory: `${directory}/memory.img` });
    const outcome = await firstLine(vm);
    if (outcome === 'killed') return undefined;
    return outcome === 'seen'
      ? { usable: true, reason: 'a guest ran under KVM' }
      : { usable: false, reason: `/dev/kvm opens, but a guest did not reach its init within ${DEADLINE_MS} ms` };
  } catch (thrown) {
    return { usable: false, reason: `a guest under KVM failed: ${asForkdError(thrown).message.split('\n')[0]}` };
  } finally {
    await vm?.stop();
    await rm(directory, { recursive: true, force: true });
  }
}

async function firstLine(vm: Vm): Promise<'seen' | 'not seen' | 'killed'> {
  let exit: VmExit | undefined;
  void vm.exited.then((how) => {
    exit = how;
  });
  const seen = (): boolean => vm.console().includes(FIRST_LINE_OF_INIT);
  for (const deadline = Date.now() + DEADLINE_MS; Date.now() < deadline && !exit && !seen(); )
    await new Promise((resolve) => setTimeout(resolve, 20));
  if (seen()) return 'seen';
  return exit?.signal === os.signals.SIGKILL ? 'killed' : 'not seen';
}

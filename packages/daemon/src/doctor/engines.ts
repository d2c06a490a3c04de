import { access, constants, readFile } from 'node:fs/promises';
import { needImageTools } from '@forkd/images';
import { asForkdError } from '@forkd/protocol';
import { type Check, fail, type Host, type Outcome, pass, skip, warn } from './check.js';
import { ask, type Said } from './program.js';

/** The guest that proves KVM has eight seconds to show itself. */
const PROOF_SECONDS = 30;
const INSTALL_QEMU = 'apt-get install qemu-system-x86';
const BUILD_KERNEL = 'Start the daemon once (`forkd serve`): it downloads and unpacks it; that needs apt-get update.';

export const engineChecks: Check[] = [
  { name: 'hw virt', run: hardware },
  { name: 'kvm', run: device },
  { name: 'kvm guest', seconds: PROOF_SECONDS, run: provenKvm },
  { name: 'qemu', seconds: PROOF_SECONDS, run: qemu },
  { name: 'firecracker', run: firecracker },
  { name: 'firecracker version', run: async ({ signal }) => firecrackerVersion(await askFirecracker(signal)) },
  { name: 'engine', seconds: PROOF_SECONDS, run: chosen },
  { name: 'kernel image', run: kernelImage },
  { name: 'image tools', run: imageTools },
];

async function hardware(): Promise<Outcome> {
  const flags = /^flags\s*: (.*)$/m.exec(await readFile('/proc/cpuinfo', 'utf8'))?.[1]?.split(' ') ?? [];
  const found = flags.find((flag) => flag === 'vmx' || flag === 'svm');
  if (found) return pass(found);
  return warn(
    'the CPU shows neither vmx nor svm: guests are emulated',
    'Enable VT-x or AMD-V in the firmware; in a VM, enable nested virtualisation on its host.',
  );
}

async function device(): Promise<Outcome> {
  try {
    await access('/dev/kvm', constants.R_OK | constants.W_OK);
    return pass('/dev/kvm can be opened; whether a guest runs is the next check');
  } catch (thrown) {
    const absent = (thrown as NodeJS.ErrnoException).code === 'ENOENT';
    return absent
      ? warn('/dev/kvm is absent: guests are emulated', 'modprobe kvm_intel || modprobe kvm_amd')
      : warn('/dev/kvm cannot be opened: guests are emulated', 'Run as root, or: adduser USER kvm');
  }
}

async function provenKvm({ kernel, probe }: Host): Promise<Outcome> {
  const missing = await absence(kernel);
  if (missing) return skip(`KVM was not tried: ${missing}`, BUILD_KERNEL);
  const { available, reason, accels } = await probe();
  if (!available) return skip(`KVM was not tried: ${reason}`, INSTALL_QEMU);
  if (accels.kvm.usable) return pass(accels.kvm.reason);
  return warn(
    `${accels.kvm.reason}: guests are emulated`,
    'Look at dmesg | grep -i kvm. In a VM, enable nested virtualisation on its host; or use bare metal.',
  );
}

async function qemu({ probe }: Host): Promise<Outcome> {
  const { available, reason } = await probe();
  return available ? pass(reason) : fail(reason, INSTALL_QEMU);
}

async function firecracker({ signal }: Host): Promise<Outcome> {
  const said = await askFirecracker(signal);
  if (said.ok) return pass('installed; not used: this forkd runs its guests on QEMU');
  return skip('not installed; not needed: this forkd runs its guests on QEMU', 'Nothing to do.');
}

export function firecrackerVersion(said: Said): Outcome {
  if (!said.ok) return skip('not installed', 'Nothing to do.');
  const version = /v?(\d+)\.(\d+)(?:\.\d+)?/.exec(said.output)?.[0];
  return version ? pass(version) : skip('it does not say its version', 'Nothing to do: it is not used.');
}

function askFirecracker(signal: AbortSignal): Promise<Said> {
  return ask('firecracker', ['--version'], signal);
}

/** What `auto` stands for on this host. */
async function chosen({ probe }: Host): Promise<Outcome> {
  const { available, reason, accels } = await probe();
  const others = 'firecracker: passed over, this forkd has no engine for it';
  if (!available) return fail(`none: qemu: ${reason}; ${others}`, INSTALL_QEMU);
  if (accels.kvm.usable) return pass(`qemu with kvm (${accels.kvm.reason}); ${others}`);
  return pass(`qemu with tcg (${accels.tcg.reason}); kvm: passed over, ${accels.kvm.reason}; ${others}`);
}

async function kernelImage({ kernel }: Host): Promise<Outcome> {
  const missing = await absence(kernel);
  return missing ? warn(missing, BUILD_KERNEL) : pass(`Linux ${(await kernel()).release}`);
}

function imageTools(): Outcome {
  try {
    needImageTools();
    return pass('everything that builds guest images is installed');
  } catch (thrown) {
    const { message, hint } = asForkdError(thrown);
    return warn(message, hint);
  }
}

async function absence(kernel: Host['kernel']): Promise<string | undefined> {
  return kernel().then(
    () => undefined,
    (thrown) => asForkdError(thrown).message,
  );
}

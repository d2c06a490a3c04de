import { qemuFiles } from '@forkd/engine-qemu';
import type { Reach } from '@forkd/host';

/** The files that VMs are made of: what is in the data directory, and QEMU. */
export async function reachOf(data: string, ...more: string[]): Promise<Reach> {
  // Who asks for a VM is told that there is no QEMU.
  const { files } = await qemuFiles('qemu-system-x86_64').catch(() => ({ files: [] }));
  // Images may be kept elsewhere, behind a link.
  return { within: [data, `${data}/images`, ...more], read: files };
}

const PT_LOAD = 1;
const PT_NOTE = 4;
const PHYS32_ENTRY = 18;

export function isElf(image: Buffer): boolean {
  return image.length > 64 && image.readUInt32BE(0) === 0x7f454c46;
}

/** Whether a 64-bit vmlinux has the Xen note with its 32-bit entry: without it no VMM can start it by PVH. */
export function bootsByPvh(vmlinux: Buffer): boolean {
  return segments(vmlinux, PT_NOTE).some(([start, end]) => hasNote(vmlinux.subarray(start, end)));
}

/** Whether everything that would be loaded is there. */
export function isWhole(vmlinux: Buffer): boolean {
  const loaded = segments(vmlinux, PT_LOAD);
  return loaded.length > 0 && loaded.every(([, end]) => end <= vmlinux.length);
}

/** Where the parts of one type lie in the file. */
function segments(vmlinux: Buffer, type: number): [start: number, end: number][] {
  const found: [number, number][] = [];
  const table = Number(vmlinux.readBigUInt64LE(0x20));
  const size = vmlinux.readUInt16LE(0x36);
  const count = vmlinux.readUInt16LE(0x38);
  for (let at = table; at < table + size * count && at + 56 <= vmlinux.length; at += size) {
    if (vmlinux.readUInt32LE(at) !== type) continue;
    const start = Number(vmlinux.readBigUInt64LE(at + 8));
    found.push([start, start + Number(vmlinux.readBigUInt64LE(at + 32))]);
  }
  return found;
}

/** "6.1.0-54-cloud-amd64" from the banner that every kernel carries. */
export function kernelRelease(vmlinux: Buffer): string | undefined {
  const banner = vmlinux.indexOf('Linux version ');
  return banner < 0 ? undefined : /^Linux version (\S+) /.exec(vmlinux.toString('latin1', banner, banner + 200))?.[1];
}

/** Those of the drivers that are not built in: one that is carries its name as a string. */
export function absentDrivers(vmlinux: Buffer, drivers: readonly string[]): string[] {
  return drivers.filter((name) => !vmlinux.includes(`${name}\0`, 0, 'latin1'));
}

function hasNote(notes: Buffer): boolean {
  let at = 0;
  while (at + 12 <= notes.length) {
    const nameSize = notes.readUInt32LE(at);
    const dataSize = notes.readUInt32LE(at + 4);
    const isXen = notes.toString('latin1', at + 12, at + 12 + nameSize) === 'Xen\0';
    if (isXen && notes.readUInt32LE(at + 8) === PHYS32_ENTRY) return true;
    at += 12 + padded(nameSize) + padded(dataSize);
  }
  return false;
}

function padded(size: number): number {
  return Math.ceil(size / 4) * 4;
}

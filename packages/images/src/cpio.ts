/** One member of an initramfs. */
export interface CpioEntry {
  path: string;
  /** Type and permission bits, as in stat. */
  mode: number;
  data?: Buffer;
  /** Major and minor number of a device node. */
  device?: [major: number, minor: number];
}

const NO_DEVICE: [number, number] = [0, 0];

/** The "newc" archive that the kernel unpacks as its first root. Owner root and time 0 throughout: same input, same bytes. */
export function cpioArchive(entries: CpioEntry[]): Buffer {
  const parts = entries.flatMap((entry, index) => member(entry, index + 1));
  return Buffer.concat([...parts, ...member({ path: 'TRAILER!!!', mode: 0 }, 0)]);
}

function member({ path, mode, data = Buffer.alloc(0), device = NO_DEVICE }: CpioEntry, inode: number): Buffer[] {
  const name = Buffer.from(`${path}\0`);
  const [uid, gid, links, mtime, checksum] = [0, 0, 1, 0, 0];
  const fields = [inode, mode, uid, gid, links, mtime, data.length, 0, 0, ...device, name.length, checksum];
  const header = `070701${fields.map((field) => field.toString(16).padStart(8, '0')).join('')}`;
  return [padded(Buffer.concat([Buffer.from(header), name])), padded(data)];
}

function padded(bytes: Buffer): Buffer {
  return Buffer.concat([bytes, Buffer.alloc(-bytes.length & 3)]);
}

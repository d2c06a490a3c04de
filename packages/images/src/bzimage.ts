import { compressor } from './decompress.js';

/** Offsets of the x86 boot protocol's setup header, fixed since protocol 2.08. */
const SETUP_SECTS = 0x1f1;
const MAGIC = 0x202;
const PAYLOAD_OFFSET = 0x248;
const PAYLOAD_LENGTH = 0x24c;

export function isBzImage(image: Buffer): boolean {
  return image.length > PAYLOAD_LENGTH + 4 && image.toString('latin1', MAGIC, MAGIC + 4) === 'HdrS';
}

/** The compressed vmlinux inside a bzImage, or undefined when the header does not say where it is. */
export function compressedKernel(image: Buffer): Buffer | undefined {
  const setup = (1 + (image[SETUP_SECTS] || 4)) * 512;
  const start = setup + image.readUInt32LE(PAYLOAD_OFFSET);
  const end = start + image.readUInt32LE(PAYLOAD_LENGTH);
  if (end <= start + 8 || end > image.length) return undefined;
  const payload = image.subarray(start, end);
  const tool = compressor(payload);
  if (!tool) return undefined;
  // The kernel's build appends the plain size, which gzip has in its own trailer and the other tools reject as garbage.
  return tool === 'gzip' ? payload : payload.subarray(0, -4);
}

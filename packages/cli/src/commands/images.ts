import { command } from '../command.js';
import { age, bytes } from '../units.js';

export const images = command({
  name: 'images',
  group: 'snapshots',
  summary: 'List snapshots, newest first',
  flags: {},
  async run(context) {
    const { output, signal } = context;
    const { snapshots } = await context.daemon();
    const found = (await snapshots.list({ signal })).sort((a, b) => b.created_at_unix - a.created_at_unix);
    // One may be removed, or still be written, while the others are asked for.
    const sizes = await Promise.allSettled(found.map(({ tag }) => snapshots.info(tag, { signal })));
    const size_bytes = sizes.map((size) => (size.status === 'fulfilled' ? size.value.memory_physical_bytes : null));
    await output.result(
      found.map((info, i) => ({ ...info, size_bytes: size_bytes[i] })),
      () => {
        const rows = found.map((info, i) => [
          ...[info.tag, info.status, size_bytes[i] == null ? null : bytes(size_bytes[i])],
          ...[info.memory_mib === undefined ? null : `${info.memory_mib} MiB`, info.recipe, age(info.created_at_unix)],
        ]);
        const total = size_bytes.reduce<number>((sum, size) => sum + (size ?? 0), 0);
        return `${output.table(['TAG', 'STATUS', 'SIZE', 'MEMORY', 'RECIPE', 'AGE'], rows)}\n${found.length} snapshots, ${bytes(total)}`;
      },
    );
  },
});

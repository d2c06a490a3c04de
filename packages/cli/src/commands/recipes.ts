import { command } from '../command.js';

export const recipes = command({
  name: 'recipes',
  group: 'snapshots',
  summary: 'List what snapshots can be made from',
  flags: {},
  async run(context) {
    const { output, signal } = context;
    const found = await (await context.daemon()).recipes({ signal });
    await output.result(found, () =>
      output.table(
        ['NAME', 'LANGUAGE', 'MEMORY', 'VCPUS', 'DESCRIPTION'],
        found.map(({ name, language, memory_mib, vcpus, description }) => [
          ...[name, language, `${memory_mib} MiB`, vcpus, description],
        ]),
      ),
    );
  },
});

import { command, toggle } from '../command.js';
import { bytes } from '../units.js';

export const gc = command({
  name: 'gc',
  group: 'snapshots',
  summary: 'Remove the snapshots that are not to be kept any longer, and say why',
  flags: { 'dry-run': toggle('Only say what would be removed') },
  async run(context, { flags }) {
    const { output, signal } = context;
    const report = await (await context.daemon()).snapshots.gc({ dry_run: flags['dry-run'], signal });
    const rows = report.removed.map(({ tag, bytes: size, why }) => [tag, bytes(size), why]);
    const verb = report.dry_run ? 'would be freed' : 'freed';
    await output.result(report, () =>
      rows.length === 0
        ? 'nothing is to be removed'
        : `${output.table(['TAG', 'SIZE', 'WHY'], rows)}\n${bytes(report.bytes)} ${verb}`,
    );
  },
});

import { command } from '../command.js';
import { tag } from '../values.js';
import { describe } from './snapshot.js';

export const wait = command({
  name: 'wait',
  group: 'snapshots',
  summary: 'Wait until a snapshot is ready; exit code 1 if it could not be made',
  operands: [{ name: 'TAG', complete: 'tags' }],
  flags: {},
  examples: ['forkd snapshot --from-sandbox ID --tag half-way --live --no-wait && forkd wait half-way'],
  async run(context, { operands: [name = ''] }) {
    const { output, signal } = context;
    const { snapshots } = await context.daemon();
    const onProgress = ({ message }: { message?: string | undefined }): void => {
      if (message !== undefined && !output.isJson) output.progress(`${name}: ${message}`);
    };
    const info = await snapshots.wait(tag(name), { signal, onProgress });
    output.endProgress();
    const isReady = info.status === 'ready';
    await output.result(info, () =>
      isReady ? output.good(describe(info)) : output.bad(`${describe(info)}\nwarning: ${info.warning ?? '-'}`),
    );
    return isReady ? 0 : 1;
  },
});

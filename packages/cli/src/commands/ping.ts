import { command } from '../command.js';
import { ms } from '../units.js';
import { CHILD } from './flags.js';
import { pickSandbox } from './pick-sandbox.js';

export const ping = command({
  name: 'ping',
  group: 'sandboxes',
  summary: 'Ask the agent of a sandbox whether it is there',
  operands: [{ name: 'ID', isOptional: true, complete: 'sandboxes' }],
  flags: CHILD,
  async run(context, { flags, operands }) {
    const { id } = pickSandbox(flags.child, operands);
    const sandbox = await (await context.daemon()).sandboxes.get(id, { signal: context.signal });
    const begin = performance.now();
    const answer = await sandbox.ping({ signal: context.signal });
    const took = performance.now() - begin;
    const { output } = context;
    await output.result({ ...answer, round_trip_ms: Number(took.toFixed(2)) }, () =>
      output.good(`${id} answered in ${ms(took)} (agent ${answer.agent_lang}, up ${ms(answer.uptime_ms)})`),
    );
  },
});

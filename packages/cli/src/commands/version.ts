import { command } from '../command.js';
import { VERSION } from '../installed.js';

export const version = command({
  name: 'version',
  group: 'daemon',
  summary: 'Versions of this program and of the daemon',
  flags: {},
  async run({ output, signal, runningDaemon }) {
    const daemon = await (await runningDaemon())?.version({ signal, timeout_ms: 5_000 }).catch(() => undefined);
    await output.result({ version: VERSION, daemon: daemon ?? null }, () =>
      [`forkd ${VERSION}`, `daemon ${daemon ? `${daemon.version} (API ${daemon.api})` : 'does not answer'}`].join('\n'),
    );
  },
});

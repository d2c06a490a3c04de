import { command } from '../command.js';
import { daemonLog, daemonSocket, dataDirectory } from '../installed.js';

export const where = command({
  name: 'where',
  group: 'daemon',
  summary: 'Print the data directory of a local daemon',
  flags: {},
  async run({ output, env }) {
    const data = dataDirectory(env);
    await output.result({ data, socket: daemonSocket(env), log: daemonLog(env) }, () => data);
  },
});

import { spawn } from 'node:child_process';
import { constants } from 'node:os';
import { command } from '../command.js';
import { DAEMON } from '../installed.js';

export const serve = command({
  name: 'serve',
  group: 'daemon',
  summary: 'Run the daemon in the foreground; all flags are its own',
  flags: {},
  isPassThrough: true,
  async run({ signal }, { operands }) {
    const daemon = spawn(DAEMON, operands, { stdio: 'inherit' });
    const stop = (): void => void daemon.kill('SIGTERM');
    const reload = (): void => void daemon.kill('SIGHUP');
    // A daemon reads its files again on SIGHUP; it does not end.
    process.removeAllListeners('SIGHUP').on('SIGHUP', reload);
    signal.addEventListener('abort', stop, { once: true });
    return new Promise<number>((resolve, reject) => {
      daemon.once('error', reject);
      daemon.once('exit', (code, name) => resolve(code ?? 128 + (name ? constants.signals[name] : 0)));
    });
  },
});

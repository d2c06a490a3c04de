import { COMMANDS } from './commands.js';
import { STOPPED } from './exit-codes.js';
import { run } from './run.js';

const stop = new AbortController();

/** The first time everything under way is ended properly; who asks twice does not want to wait. */
function stopWith(code: number): void {
  if (stop.signal.aborted) process.exit(code);
  stop.abort(code);
}

for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(name, () => stopWith(STOPPED[name]));
for (const stream of [process.stdout, process.stderr])
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error;
    if (!stop.signal.aborted) stopWith(STOPPED.SIGPIPE);
  });

const code = await run(COMMANDS, process.argv.slice(2), {
  stdout: process.stdout,
  stderr: process.stderr,
  env: process.env,
  signal: stop.signal,
});
// What is still open (standard input, idle connections) must not keep the program, what is still to be written must.
process.stdout.write('', () => process.exit(stop.signal.aborted ? Number(stop.signal.reason) : code));

import { request as http } from 'node:http';
import { request as https } from 'node:https';
import { type Check, fail, type Host, type Outcome, type Place, pass, warn } from './check.js';

const PATIENCE_MS = 2_000;
const START = 'Start it: forkd serve';

export const daemonChecks: Check[] = [{ name: 'daemon', seconds: 10, run: daemon }];

async function daemon(host: Host): Promise<Outcome> {
  const silent: string[] = [];
  for (const place of host.daemons) {
    const name = 'socket' in place ? place.socket : place.url;
    try {
      return judge(await answer(place, host), name, host.token);
    } catch (thrown) {
      const { code, message } = thrown as NodeJS.ErrnoException;
      silent.push(`${name} (${code ?? message})`);
    }
  }
  return warn(`none answers at ${silent.join(' or ')}`, START);
}

function judge(status: number, place: string, token: string | undefined): Outcome {
  if (status === 200) return pass(`answers at ${place}`);
  if (status === 401)
    return token === undefined
      ? fail(`the daemon at ${place} wants a token`, 'export FORKD_TOKEN="$(cat TOKEN-FILE)"')
      : fail(
          `the daemon at ${place} refuses the token`,
          'Set FORKD_TOKEN to a token in the file the daemon was given.',
        );
  if (status === 403) return fail(`the token may not list snapshots at ${place}`, 'Set FORKD_TOKEN to another token.');
  return warn(`what answers at ${place} says ${status}: not a forkd daemon?`, 'Check FORKD_URL, or look at its log.');
}

/** The status of a listing, which every role may ask for. */
function answer(daemon: Place, { token, signal }: Host): Promise<number> {
  const options = { headers: token === undefined ? {} : { authorization: `Bearer ${token}` }, signal };
  const path = '/v1/snapshots';
  return new Promise((resolve, reject) => {
    const request =
      'socket' in daemon
        ? http({ socketPath: daemon.socket, path, ...options })
        : (daemon.url.startsWith('https:') ? https : http)(new URL(path, daemon.url), options);
    request.setTimeout(PATIENCE_MS, () => request.destroy(new Error(`no answer within ${PATIENCE_MS / 1000} s`)));
    request.on('error', reject);
    request.on('response', (response) => {
      resolve(response.statusCode ?? 0);
      response.destroy();
    });
    request.end();
  });
}

import type { GuestClient } from '@forkd/guest';
import type { Recipe } from '@forkd/images';
import { ForkdError } from '@forkd/protocol';

/** Where Debian looks for certificates of the site, and where it puts all together. */
const OURS = '/usr/local/share/ca-certificates/forkd-egress.crt';
const ALL = '/etc/ssl/certs/ca-certificates.crt';
/** For those who bring certificates of their own. */
const ENV = { NODE_EXTRA_CA_CERTS: OURS, REQUESTS_CA_BUNDLE: ALL, SSL_CERT_FILE: ALL };

const COMMAND = `if command -v update-ca-certificates; then update-ca-certificates; else mkdir -p /etc/ssl/certs && cat ${OURS} >> ${ALL}; fi`;

/** Lets the guest of a recipe that wants it believe whoever speaks for hosts to it; gives the recipe with what that needs. */
export async function trustAuthority(
  guest: GuestClient,
  recipe: Recipe,
  certificate: string | undefined,
  signal: AbortSignal,
): Promise<Recipe> {
  if (!recipe.trust_egress_ca) return recipe;
  if (certificate === undefined)
    throw new ForkdError('host_unfit', 'trust_egress_ca: only the daemon speaks for hosts', {
      hint: 'Create the snapshot through the daemon, or leave trust_egress_ca out of the recipe.',
    });
  await guest.files.write(OURS, certificate, { signal });
  const { exitCode, stderr } = await guest.exec({ command: COMMAND, timeoutMs: 60_000, signal });
  if (exitCode !== 0)
    throw new ForkdError('warmup_failed', `trust_egress_ca: exit code ${exitCode}\n${stderr.slice(-1000)}`);
  return { ...recipe, env: { ...ENV, ...recipe.env } };
}

import { createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject, X509Certificate } from 'node:crypto';
import { closeSync, fsyncSync, mkdirSync, openSync, readFileSync, renameSync, writeSync } from 'node:fs';
import { createSecureContext, type SecureContext } from 'node:tls';
import { ForkdError } from '@forkd/protocol';
import { makeCertificate } from './certificate.js';

const DAY_MS = 86_400_000;
const LIFE_MS = 10 * 365 * DAY_MS;
const LEAF_MS = 7 * DAY_MS;
/** Made again long before it ends. */
const KEPT_MS = DAY_MS;
const MOST_LEAVES = 256;
const NAME = 'forkd egress';

/** Speaks for hosts to the sandboxes that trust it: made once for a data directory, and its key never leaves that. */
export class Authority {
  /** The certificate, in PEM. */
  readonly certificate: string;
  readonly #key: KeyObject;
  readonly #leafKeys = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  readonly #leaves = new Map<string, { context: SecureContext; until: number }>();

  constructor(directory: string) {
    mkdirSync(directory, { recursive: true, mode: 0o700 });
    const file = `${directory}/ca.pem`;
    const text = read(file) ?? make(file);
    try {
      this.#key = createPrivateKey(text);
      this.certificate = new X509Certificate(text.slice(text.indexOf('-----BEGIN CERTIFICATE'))).toString();
      if (!new X509Certificate(this.certificate).checkPrivateKey(this.#key))
        throw new Error('key and certificate differ');
    } catch (cause) {
      throw new ForkdError('host_unfit', `the egress authority ${file} cannot be used: ${(cause as Error).message}`, {
        cause,
        hint: 'Remove the file: a new authority is made, which snapshots that trust the old one do not know.',
      });
    }
  }

  /** What a server needs to speak for this host. */
  contextFor(host: string): SecureContext {
    const known = this.#leaves.get(host);
    if (known && known.until > Date.now()) return known.context;
    const cert = makeCertificate({
      subject: host,
      issuer: NAME,
      host,
      key: this.#leafKeys.publicKey,
      issuerPublic: createPublicKey(this.#key),
      issuerKey: this.#key,
      from: new Date(Date.now() - DAY_MS),
      until: new Date(Date.now() + LEAF_MS),
    });
    const key = this.#leafKeys.privateKey.export({ type: 'pkcs8', format: 'pem' });
    const context = createSecureContext({ cert, key, minVersion: 'TLSv1.2' });
    this.#leaves.delete(host);
    this.#leaves.set(host, { context, until: Date.now() + KEPT_MS });
    if (this.#leaves.size > MOST_LEAVES) this.#leaves.delete(this.#leaves.keys().next().value!);
    return context;
  }
}

function read(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8');
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw thrown;
  }
}

/** Key and certificate are one file, which is whole or not there. */
function make(file: string): string {
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const now = Date.now();
  const certificate = makeCertificate({
    subject: NAME,
    issuer: NAME,
    key: publicKey,
    issuerPublic: publicKey,
    issuerKey: privateKey,
    from: new Date(now - DAY_MS),
    until: new Date(now + LIFE_MS),
  });
  const text = `${privateKey.export({ type: 'pkcs8', format: 'pem' })}${certificate}`;
  const draft = openSync(`${file}.new`, 'w', 0o600);
  try {
    writeSync(draft, text);
    fsyncSync(draft);
  } finally {
    closeSync(draft);
  }
  renameSync(`${file}.new`, file);
  return text;
}

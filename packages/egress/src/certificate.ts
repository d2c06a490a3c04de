import { createHash, type KeyObject, randomBytes, sign } from 'node:crypto';
import { bits, der, integer, octets, oid, sequence, tagged, time, yes } from './der.js';

const ECDSA_SHA256 = sequence(oid('1.2.840.10045.4.3.2'));

export interface CertificateOptions {
  subject: string;
  issuer: string;
  /** Of the subject. */
  key: KeyObject;
  issuerPublic: KeyObject;
  issuerKey: KeyObject;
  from: Date;
  until: Date;
  /** `undefined`: it is an authority, for servers only and with nothing below it but those. */
  host?: string;
}

/** An X.509 certificate (version 3, P-256) in PEM. */
export function makeCertificate(options: CertificateOptions): string {
  const { subject, issuer, key, issuerPublic, issuerKey, from, until, host } = options;
  // The high bit is clear: a number of 16 bytes, never negative and never short.
  const serial = randomBytes(16);
  serial[0] = (serial[0]! & 0x7f) | 0x40;
  const body = sequence(
    tagged(0, integer(Buffer.from([2]))),
    integer(serial),
    ECDSA_SHA256,
    name(issuer),
    sequence(time(from), time(until)),
    name(subject),
    key.export({ type: 'spki', format: 'der' }),
    tagged(3, sequence(...extensions(host, key, issuerPublic))),
  );
  const certificate = sequence(body, ECDSA_SHA256, bits(sign('sha256', body, issuerKey)));
  const lines = certificate.toString('base64').match(/.{1,64}/g)!;
  return `-----BEGIN CERTIFICATE-----\n${lines.join('\n')}\n-----END CERTIFICATE-----\n`;
}

function extensions(host: string | undefined, key: KeyObject, issuerPublic: KeyObject): Buffer[] {
  const identifiers = [
    extension('2.5.29.14', octets(identifier(key))),
    extension('2.5.29.35', sequence(der(0x80, identifier(issuerPublic)))),
    extension('2.5.29.37', sequence(oid('1.3.6.1.5.5.7.3.1'))),
  ];
  if (host === undefined)
    return [
      ...identifiers,
      extension('2.5.29.19', sequence(yes, integer(Buffer.from([0]))), yes),
      // Signs certificates and lists of revoked ones.
      extension('2.5.29.15', bits(Buffer.from([0x06]), 1), yes),
    ];
  return [
    ...identifiers,
    extension('2.5.29.19', sequence(), yes),
    extension('2.5.29.15', bits(Buffer.from([0x80]), 7), yes),
    extension('2.5.29.17', sequence(der(0x82, Buffer.from(host)))),
  ];
}

function extension(id: string, value: Buffer, critical?: Buffer): Buffer {
  return sequence(oid(id), ...(critical ? [critical] : []), octets(value));
}

function identifier(key: KeyObject): Buffer {
  return createHash('sha1')
    .update(key.export({ type: 'spki', format: 'der' }))
    .digest();
}

/** Only a common name, which has at most 64 characters. */
function name(text: string): Buffer {
  return sequence(der(0x31, sequence(oid('2.5.4.3'), der(0x0c, Buffer.from(text.slice(0, 64))))));
}

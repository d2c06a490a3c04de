import { X509Certificate } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { expect, it, onTestFinished } from 'vitest';
import { Authority } from './authority.js';

function directory(): string {
  const path = mkdtempSync(`${tmpdir()}/forkd-authority-`);
  onTestFinished(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

it('is made once, and its key is for nobody else', () => {
  const path = `${directory()}/egress`;
  const first = new Authority(path);
  expect(new Authority(path).certificate).toBe(first.certificate);
  expect(statSync(`${path}/ca.pem`).mode & 0o777).toBe(0o600);
  expect(statSync(path).mode & 0o777).toBe(0o700);
  const certificate = new X509Certificate(first.certificate);
  expect(certificate.ca).toBe(true);
  expect(certificate.verify(certificate.publicKey)).toBe(true);
  expect(first.certificate).not.toContain('PRIVATE');
});

it('keeps what it has made for a host for a while, and no more than it should', () => {
  const authority = new Authority(directory());
  expect(authority.contextFor('a.example')).toBe(authority.contextFor('a.example'));
  const kept = authority.contextFor('first.example');
  for (let index = 0; index < 256; index++) authority.contextFor(`h${index}.example`);
  expect(authority.contextFor('first.example')).not.toBe(kept);
});

it('a file that is damaged is refused with the way out', () => {
  const path = directory();
  new Authority(path);
  writeFileSync(`${path}/ca.pem`, readFileSync(`${path}/ca.pem`, 'utf8').slice(0, 300));
  expect(() => new Authority(path)).toThrow(/cannot be used/);
});

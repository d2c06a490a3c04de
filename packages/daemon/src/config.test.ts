import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { type Config, readConfig } from './config.js';
import { FLAGS, helpText, readFlags } from './flags.js';

function read(args: string[], env: NodeJS.ProcessEnv = {}): Config {
  const flags = readFlags(args, env);
  if (typeof flags === 'string') throw new Error(flags);
  return readConfig(flags, '/r');
}

it('flags beat the environment, the environment beats the defaults', () => {
  expect(read([])).toMatchObject({ tcp: { host: '127.0.0.1', port: 8889 }, recipes: '/r' });
  expect(read([], { FORKD_BIND: '' })).toMatchObject({ tcp: { port: 8889 } });
  expect(read([], { FORKD_BIND: '[::1]:1' })).toMatchObject({ tcp: { host: '::1', port: 1 } });
  expect(read(['--bind', '127.0.0.2:2'], { FORKD_BIND: '[::1]:1' })).toMatchObject({ tcp: { host: '127.0.0.2' } });
});

it('what is not named is in the data directory', () => {
  expect(read(['--data', '/d'])).toMatchObject({
    state: '/d/state.db',
    snapshotRoot: '/d/snapshots',
    auditLog: '/d/audit.log',
  });
});

it('every flag of forkd is taken, also after "serve"', () => {
  const forkd = {
    bind: '127.0.0.1:1',
    state: '/s/state.db',
    'snapshot-root': '/s/snapshots',
    'audit-log': '/s/audit.log',
    'token-file': '/s/token',
    'tls-cert': '/s/cert',
    'tls-key': '/s/key',
    'prewarm-scratch-dir': '/dev/shm/x',
    'branch-concurrency': '7',
  };
  const args = Object.entries(forkd).flatMap(([name, value]) => [`--${name}`, value]);
  const expected = {
    tcp: { host: '127.0.0.1', port: 1, tls: { cert: '/s/cert', key: '/s/key' } },
    state: '/s/state.db',
    snapshotRoot: '/s/snapshots',
    auditLog: '/s/audit.log',
    tokenFile: '/s/token',
    branchConcurrency: 7,
  };
  expect(read(['serve', ...args])).toMatchObject(expected);
  const names = Object.entries(forkd).map(([name, value]) => [FLAGS[name as keyof typeof forkd].env, value]);
  expect(read([], Object.fromEntries(names))).toMatchObject(expected);
});

describe('bug class 5: an address others can reach without a token', () => {
  it.each(['0.0.0.0:8889', '[::]:8889', '192.0.2.1:8889', '[::ffff:127.0.0.1]:8889'])('%s is refused', (bind) => {
    expect(() => read(['--bind', bind])).toThrowError(/without a token/);
    expect(read(['--bind', bind, '--token-file', '/t']).tcp).toMatchObject({ port: 8889 });
    expect(read(['--bind', bind, '--tokens-file', '/t']).tcp).toMatchObject({ port: 8889 });
  });
});

it.each(['8889', 'localhost:8889', '127.0.0.1:99999', '127.0.0.1:', ':8889', '127.0.0.1:x'])(
  'the address %j is refused',
  (bind) => {
    expect(() => read(['--bind', bind])).toThrowError(/cannot bind/);
  },
);

it.each([
  [['--bind', 'none'], /nothing to listen on/],
  [['--tls-cert', '/c'], /belong together/],
  [['--tls-key', '/k'], /belong together/],
  [['--state', '/var/lib/forkd/state.json'], /JSON/],
  [['--branch-concurrency', '0'], /from 1 to/],
  [['--branch-concurrency', '-1'], /./],
  [['--rate-limit', '1e3'], /whole number/],
  [['--max-concurrent', '0'], /from 1 to/],
  [['--log-level', 'loud'], /none of/],
  [['--network', 'all'], /none of/],
  [['--network-range', '8.8.8.0/30'], /private range/],
  [['--socket', `/${'x'.repeat(107)}`], /107 bytes/],
  [['--otlp-endpoint', 'file:///x'], /not an http/],
  [['stray'], /stray/],
])('%j is refused with a hint', (args, message) => {
  expect(() => read(args)).toThrowError(
    expect.objectContaining({ message: expect.stringMatching(message), hint: expect.stringMatching(/./) }),
  );
});

it('an unknown flag is refused with those that exist', () => {
  expect(() => read(['--colour'])).toThrowError(
    expect.objectContaining({ hint: expect.stringContaining('--tokens-file') }),
  );
});

it('bug class 6: help names every flag and variable, and tells nothing of the environment', () => {
  const secrets = Object.fromEntries(Object.values(FLAGS).map(({ env }) => [env, `secret-of-${env}`]));
  expect(readFlags(['--help'], secrets)).toBe('help');
  for (const [name, { env }] of Object.entries(FLAGS)) {
    expect(helpText()).toContain(`--${name} `);
    expect(helpText()).toContain(`[${env}]`);
  }
  const main = fileURLToPath(new URL('../dist/main.js', import.meta.url));
  const printed = execFileSync(process.execPath, [main, '--help'], { env: secrets, encoding: 'utf8' });
  expect(printed).toBe(helpText());
  expect(printed).not.toContain('secret-of');
});

it('VMMs are jailed unless that is refused in so many words', () => {
  expect(read([]).jail).toEqual({ first: 300_000, last: 365_535 });
  expect(read(['--jail-uids', '5000-6000']).jail).toEqual({ first: 5000, last: 6000 });
  expect(read([], { FORKD_NO_JAIL: '0' }).jail).toMatchObject({ first: 300_000 });
  for (const none of [read(['--no-jail']), read([], { FORKD_NO_JAIL: '1' })]) expect(none.jail).toBe('none');
  for (const range of ['0-65535', '999-2000', '2000-2000', '3000-2000', '5000', '5000-99999999999', 'a-b', '-1-5000'])
    expect(() => read([`--jail-uids=${range}`])).toThrowError(/no range of users/);
  expect(() => read([], { FORKD_NO_JAIL: 'yes' })).toThrowError(/neither 1 nor 0/);
});

it('the documentation names every flag and variable', () => {
  const text = readFileSync(new URL('../../../docs/daemon.md', import.meta.url), 'utf8');
  for (const [name, { env }] of Object.entries(FLAGS)) {
    expect(text).toContain(`\`--${name}\``);
    expect(text).toContain(`\`${env}\``);
  }
});

it('a URL that may hold a password is not repeated in the error', () => {
  const url = 'ftp://user:hunter2@host';
  expect(() => read(['--otlp-endpoint', url])).toThrowError(
    expect.objectContaining({ message: expect.not.stringContaining('hunter2') }),
  );
});

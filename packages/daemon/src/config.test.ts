import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { afterAll, expect, it } from 'vitest';
import { readConfig } from './config.js';

const root = mkdtempSync(`${tmpdir()}/forkd-config-`);
afterAll(() => rmSync(root, { recursive: true }));

function token(text: string): string {
  const file = `${root}/token`;
  writeFileSync(file, text);
  return file;
}

it('flags beat the environment, the environment beats the defaults', () => {
  expect(readConfig([], {}, '/r')).toMatchObject({ host: '127.0.0.1', port: 8889, recipes: '/r' });
  expect(readConfig([], { FORKD_BIND: '[::1]:1' }, '/r')).toMatchObject({ host: '::1', port: 1 });
  expect(readConfig(['--bind', '127.0.0.2:2'], { FORKD_BIND: '[::1]:1' }, '/r')).toMatchObject({
    host: '127.0.0.2',
    port: 2,
  });
});

it.each([
  '',
  'short',
  'REPLACE_ME_PLEASE_REPLACE_ME',
  'change_me_change_me_change_me',
  'has a space in the middle of it',
])('the token %j is refused', (text) => {
  expect(() => readConfig(['--token-file', token(text)], {}, '/r')).toThrowError(
    expect.objectContaining({ code: 'invalid_request' }),
  );
});

it('other addresses than loopback need a token', () => {
  for (const bind of ['0.0.0.0:8889', '[::]:8889', '192.0.2.1:8889'])
    expect(() => readConfig(['--bind', bind], {}, '/r')).toThrowError(/without a token/);
  const args = ['--bind', '0.0.0.0:8889', '--token-file', token('0123456789abcdef\n')];
  expect(readConfig(args, {}, '/r').token).toBe('0123456789abcdef');
});

it.each(['8889', 'localhost:8889', '127.0.0.1:99999', '127.0.0.1:', ':8889', '127.0.0.1:x'])(
  'the address %j is refused',
  (bind) => {
    expect(() => readConfig(['--bind', bind], {}, '/r')).toThrowError(/cannot bind/);
  },
);

it('an unknown flag is refused with those that exist', () => {
  expect(() => readConfig(['--colour'], {}, '/r')).toThrowError(
    expect.objectContaining({ hint: expect.stringContaining('--bind') }),
  );
});

import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';

const WORLD = fileURLToPath(new URL('../dist/world.fixture.js', import.meta.url));
const ADDRESSES = ['203.0.113.1/32', '203.0.113.53/32', '2001:db8::1/128'];

it('real names and real connections, in a network of its own', () => {
  const commands = ['ip link set lo up', ...ADDRESSES.map((address) => `ip addr add ${address} dev lo`)];
  const script = `${commands.join(' && ')} && exec "$0" "$1"`;
  const args = ['--net', 'sh', '-ec', script, process.execPath, WORLD];
  const printed = execFileSync('unshare', args, { encoding: 'utf8', timeout: 60_000 });
  expect(JSON.parse(printed)).toEqual({
    'web.example': ['web at 203.0.113.1', '203.0.113.1'],
    'six.example': ['web at 2001:db8::1', '2001:db8::1'],
    'half.example': ['web at 203.0.113.1', '203.0.113.1'],
    'inside.example': ['cut'],
    'nobody.example': ['cut'],
    'other.test': ['cut'],
  });
});

import { NetworkPolicy } from '@forkd/protocol';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { decide, keyOf, mayResolve } from './decide.js';
import { policy } from './testing.js';
import { udpPolicy } from './udp.js';
import { widening } from './within.js';

const allowed = (given: Partial<NetworkPolicy>, address: string, port = 443, name?: string): boolean =>
  decide(policy(given), { address, port, name }).allowed;

describe('presets', () => {
  it.each([
    ['203.0.113.5', false, true, true],
    ['2606:4700::1', false, true, true],
    ['10.1.2.3', false, false, true],
    ['192.168.0.1', false, false, true],
    ['100.64.0.1', false, false, true],
    ['fd12::1', false, false, true],
    ['127.0.0.1', false, false, false],
    ['::1', false, false, false],
    ['0.0.0.0', false, false, false],
    ['169.254.1.1', false, false, false],
    ['fe80::1', false, false, false],
    ['fe80::1%eth0', false, false, false],
    ['224.0.0.1', false, false, false],
    ['255.255.255.255', false, false, false],
    ['ff02::1', false, false, false],
    ['169.254.169.254', false, false, false],
    ['fd00:ec2::254', false, false, false],
    ['100.100.100.200', false, false, false],
    ['168.63.129.16', false, false, false],
    // The same in other clothes.
    ['::ffff:127.0.0.1', false, false, false],
    ['::ffff:a9fe:a9fe', false, false, false],
    ['::ffff:203.0.113.5', false, true, true],
    ['::127.0.0.1', false, false, false],
    ['64:ff9b::7f00:1', false, false, false],
    ['64:ff9b::a9fe:a9fe', false, false, false],
    ['64:ff9b::10.0.0.1', false, false, true],
    ['2002:7f00:1::', false, false, false],
    ['2002:a9fe:a9fe::1', false, false, false],
    ['2001:0:7f00:1::', false, false, false],
    // Not addresses, whatever some programs make of them.
    ['127.1', false, false, false],
    ['2130706433', false, false, false],
    ['0x7f.0.0.1', false, false, false],
    ['010.0.0.1', false, false, false],
    ['1.2.3.4 ', false, false, false],
    ['::1%a%b', false, false, false],
  ])('%s: none %s, internet %s, all %s', (address, none, internet, all) => {
    const open = (['none', 'internet', 'all'] as const).map((preset) => allowed({ preset }, address));
    expect(open).toEqual([none, internet, all]);
  });
});

describe('entries', () => {
  it('an address that is denied is denied by whatever name', () => {
    const given = {
      preset: 'all',
      allow: ['10.0.0.0/8', 'api.example.com'],
      deny: ['10.0.0.7', '203.0.113.0/24:25'],
    } as const;
    expect(allowed({ ...given, allow: [...given.allow], deny: [...given.deny] }, '10.0.0.7')).toBe(false);
    const list = { preset: given.preset, allow: [...given.allow], deny: [...given.deny] };
    expect(allowed(list, '10.0.0.8')).toBe(true);
    expect(allowed(list, '203.0.113.1', 25, 'api.example.com')).toBe(false);
    expect(allowed(list, '203.0.113.1', 26)).toBe(true);
  });

  it('what is not public is open only to those who name it', () => {
    expect(allowed({ allow: ['0.0.0.0/0', '::/0'] }, '203.0.113.1')).toBe(true);
    for (const address of ['10.0.0.1', '127.0.0.1', '169.254.169.254', '::1', 'fd00::1'])
      expect(allowed({ allow: ['0.0.0.0/0', '::/0'] }, address)).toBe(false);
    expect(allowed({ allow: ['10.0.0.0/8:443'] }, '10.0.0.1')).toBe(true);
    expect(allowed({ allow: ['10.0.0.0/8:443'] }, '10.0.0.1', 80)).toBe(false);
    expect(allowed({ allow: ['127.0.0.0/8'] }, '127.0.0.1')).toBe(true);
    expect(allowed({ preset: 'all', allow: ['169.254.0.0/16'] }, '169.254.169.254')).toBe(false);
    expect(allowed({ allow: ['169.254.169.254:80'] }, '::ffff:169.254.169.254', 80)).toBe(true);
    expect(allowed({ allow: ['[fd00:ec2::254]:80'] }, 'fd00:ec2::254', 80)).toBe(true);
  });

  it('a name opens public addresses, and no others', () => {
    const given = { allow: ['api.example.com:443', '*.cdn.example'] };
    expect(allowed(given, '203.0.113.1', 443, 'api.example.com')).toBe(true);
    expect(allowed(given, '203.0.113.1', 80, 'api.example.com')).toBe(false);
    expect(allowed(given, '203.0.113.1', 80, 'a.b.cdn.example')).toBe(true);
    expect(allowed(given, '203.0.113.1', 80, 'cdn.example')).toBe(false);
    expect(allowed(given, '203.0.113.1', 80, 'evilcdn.example')).toBe(false);
    expect(allowed(given, '203.0.113.1')).toBe(false);
    for (const address of ['10.0.0.1', '127.0.0.1', '169.254.169.254', '::ffff:10.0.0.1'])
      expect(decide(policy(given), { address, port: 443, name: 'api.example.com' })).toMatchObject({ allowed: false });
    expect(allowed({ allow: ['db.corp', '10.0.0.0/8'] }, '10.0.0.1', 5432, 'db.corp')).toBe(true);
  });

  it('of names the most exact entry counts', () => {
    const given = {
      preset: 'internet' as const,
      allow: ['ok.bad.example'],
      deny: ['*.bad.example', 'worse.example:80'],
    };
    const answers = (name: string, port = 443): boolean => allowed(given, '203.0.113.1', port, name);
    expect([answers('x.bad.example'), answers('ok.bad.example'), answers('bad.example')]).toEqual([false, true, true]);
    expect([answers('worse.example', 80), answers('worse.example')]).toEqual([false, true]);
    expect(allowed({ allow: ['a.example'], deny: ['a.example'] }, '203.0.113.1', 1, 'a.example')).toBe(false);
  });

  it('the host itself is reached only by those who name its address', () => {
    const own = new Set([keyOf({ family: 4, value: 0xcb007109n })]);
    const reach = (given: Partial<NetworkPolicy>, name?: string): boolean =>
      decide(policy(given), { address: '203.0.113.9', port: 22, name }, own).allowed;
    expect([reach({ preset: 'all' }), reach({ allow: ['203.0.113.0/24'] }), reach({ allow: ['203.0.113.9'] })]).toEqual(
      [false, false, true],
    );
    expect(reach({ allow: ['host.example'] }, 'host.example')).toBe(false);
  });

  it('only names that might be reached are looked up', () => {
    expect(mayResolve(policy(), 'a.example').allowed).toBe(false);
    expect(mayResolve(policy({ allow: ['10.0.0.0/8'] }), 'a.example').allowed).toBe(false);
    expect(mayResolve(policy({ allow: ['a.example:1'] }), 'a.example').allowed).toBe(true);
    expect(mayResolve(policy({ preset: 'internet', deny: ['*.example'] }), 'a.example').allowed).toBe(false);
    expect(mayResolve(policy({ preset: 'internet' }), 'a.example').allowed).toBe(true);
  });
});

describe('what a policy may not say', () => {
  it.each([
    ['10.0.0.0/33', /length/],
    ['10.0.0.1/8', /10\.0\.0\.0\/8/],
    ['300.1.1.1', /no address/],
    ['1.2.3', /no address/],
    ['010.0.0.1', /no address/],
    ['10.0.0.0/', /length/],
    ['10.0.0.0/8/8', /length/],
    ['a.example:0', /port/],
    ['a.example:65536', /port/],
    ['a.example:', /port/],
    ['a.example:080', /port/],
    ['10.0.0.0/8:x', /port/],
    ['[2001:db8::1]:99999', /port/],
    ['::ffff:10.0.0.1', /10\.0\.0\.1/],
    ['64:ff9b::/96', /0\.0\.0\.0/],
    ['fe80::1%eth0', /no address/],
    ['*', /host name/],
    ['*.', /host name/],
    ['a.*.example', /host name/],
    ['**.example', /host name/],
    ['', /host name/],
    ['.example', /host name/],
    ['a..example', /host name/],
    ['-a.example', /host name/],
    ['münchen.example', /xn--/],
    ['1.2.3.4.5', /no address/],
    ['a.0x7f', /host name/],
    ['http://a.example', /./],
    ['a b', /host name/],
    ['a\0.example', /host name/],
    [`${'a'.repeat(64)}.example`, /host name/],
    ['a'.repeat(301), /./],
  ])('%j', (entry, why) => {
    const result = NetworkPolicy.safeParse({ allow: [entry] });
    expect(result.error?.issues[0]?.message ?? 'accepted').toMatch(why);
    expect(result.success).toBe(false);
  });

  it('too much', () => {
    const many = Array.from({ length: 257 }, (_, index) => `h${index}.example`);
    expect(NetworkPolicy.safeParse({ allow: many }).success).toBe(false);
    expect(NetworkPolicy.safeParse({ preset: 'some' }).success).toBe(false);
    expect(NetworkPolicy.safeParse({ alow: [] }).success).toBe(false);
  });

  it('entries are kept in one form', () => {
    const given = [
      'A.Example.:443',
      '[2001:DB8:0::]/32',
      '2001:db8::1',
      '[2001:db8::1]:53',
      '10.0.0.1/32',
      '*.B.example',
    ];
    expect(policy({ allow: given }).allow).toEqual([
      'a.example:443',
      '2001:db8::/32',
      '2001:db8::1',
      '[2001:db8::1]:53',
      '10.0.0.1',
      '*.b.example',
    ]);
  });
});

const port = fc.constantFrom('', ':443', ':80');
const label = fc.constantFrom('a', 'b', 'c');
const nameText = fc.array(label, { minLength: 1, maxLength: 3 }).map((labels) => `${labels.join('.')}.example`);
const addressText = fc.oneof(
  fc.constantFrom(
    '10.0.0.1',
    '10.1.0.1',
    '203.0.113.1',
    '203.0.113.9',
    '127.0.0.1',
    '169.254.169.254',
    '::1',
    'fd00::1',
  ),
  fc.constantFrom('2606:4700::1', '::ffff:10.0.0.1', '64:ff9b::7f00:1', '224.0.0.1', '100.100.100.200'),
  fc.ipV4(),
  fc.ipV6(),
);
const entryText = fc.oneof(
  fc.tuple(fc.constantFrom('', '*.'), nameText, port).map(([star, name, end]) => `${star}${name}${end}`),
  fc
    .tuple(
      fc.constantFrom(
        '0.0.0.0/0',
        '10.0.0.0/8',
        '10.1.0.0/16',
        '10.0.0.1',
        '203.0.113.0/24',
        '203.0.113.9',
        '127.0.0.0/8',
      ),
      port,
    )
    .map(([range, end]) => `${range}${end}`),
  fc.constantFrom('169.254.169.254', '169.254.0.0/16', '::/0', 'fd00::/8', '2606:4700::/32', '::1'),
);
const list = fc.array(entryText, { maxLength: 4 });
const anyPolicy = fc
  .record({ preset: fc.constantFrom('none' as const, 'internet' as const, 'all' as const), allow: list, deny: list })
  .map(policy);
const target = fc.record({
  address: addressText,
  port: fc.constantFrom(443, 80, 22),
  name: fc.option(nameText, { nil: undefined }),
});
const own = new Set([keyOf({ family: 4, value: 0xcb007109n })]);

describe('always', () => {
  it('a policy that does not widen another allows nothing that one does not', () => {
    let held = 0;
    fc.assert(
      fc.property(anyPolicy, anyPolicy, target, (narrow, wide, to) => {
        if (widening(narrow, wide, own) !== undefined) return;
        held++;
        if (decide(narrow, to, own).allowed) expect(decide(wide, to, own).allowed).toBe(true);
        const { address, port } = to;
        if (decide(udpPolicy(narrow), { address, port }, own).allowed)
          expect(decide(udpPolicy(wide), { address, port }, own).allowed).toBe(true);
        if (to.name !== undefined && mayResolve(narrow, to.name).allowed)
          expect(mayResolve(wide, to.name).allowed).toBe(true);
      }),
      { numRuns: 3_000 },
    );
    expect(held).toBeGreaterThan(20);
  });

  it('every policy is within itself, and denying more never opens anything', () => {
    fc.assert(
      fc.property(anyPolicy, entryText, target, (given, more, to) => {
        expect(widening(given, given, own)).toBeUndefined();
        if (!decide(given, to, own).allowed)
          expect(decide(policy({ ...given, deny: [...given.deny, more] }), to, own).allowed).toBe(false);
      }),
      { numRuns: 3_000 },
    );
  });

  it('however an IPv4 address is written, it is that address', () => {
    fc.assert(
      fc.property(anyPolicy, fc.ipV4(), fc.constantFrom(443, 22), (given, address, to) => {
        const [a, b, c, d] = address.split('.').map((part) => Number(part).toString(16).padStart(2, '0'));
        const forms = [
          `::ffff:${address}`,
          `::ffff:${a}${b}:${c}${d}`,
          `64:ff9b::${address}`,
          `2002:${a}${b}:${c}${d}::1`,
        ];
        const verdict = decide(given, { address, port: to }, own);
        for (const form of forms) expect(decide(given, { address: form, port: to }, own)).toEqual(verdict);
      }),
    );
  });

  it('no text makes it fail', () => {
    const anyText = fc.oneof(fc.string(), fc.string({ unit: 'binary' }), addressText, entryText);
    fc.assert(
      fc.property(anyText, anyText, (entry, address) => {
        const parsed = NetworkPolicy.safeParse({ allow: [entry] });
        if (parsed.success) {
          expect(policy(parsed.data)).toEqual(parsed.data);
          decide(parsed.data, { address, port: 1, name: entry });
        }
      }),
      { numRuns: 3_000 },
    );
  });
});

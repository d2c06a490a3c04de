import { ForkdError } from '@forkd/protocol';
import { describe, expect, it } from 'vitest';
import { parseRecipe } from './load-recipe.js';

const BASE = '[base]\ndebian = "bookworm"\n';

function refusal(text: string): string {
  try {
    parseRecipe(text);
  } catch (thrown) {
    if (thrown instanceof ForkdError && thrown.code === 'recipe_invalid') return thrown.message;
    throw thrown;
  }
  throw new Error('the recipe was accepted');
}

function file(fields: string): string {
  return `${BASE}[[files]]\n${fields}\n`;
}

describe('a recipe', () => {
  it('needs nothing but a base', () => {
    expect(parseRecipe(BASE)).toEqual({
      description: '',
      memory_mib: 256,
      vcpus: 1,
      disk_mib: 2048,
      base: { debian: 'bookworm', packages: [] },
      files: [],
      env: {},
      warmup: { timeout_secs: 120 },
      ready: { timeout_secs: 60 },
    });
  });

  it.each([
    ['an unknown field', `colour = "red"\n${BASE}`, /unknown field "colour"; allowed here: description, memory_mib/],
    ['an unknown field of a table', `${BASE}[ready]\nprot = 80`, /ready: unknown field "prot"; .*port/],
    ['an unknown field of a file', file('path = "/a"\ncontent = ""\nowner = 1'), /files\[0\]: unknown field "owner"/],
    ['no base', 'vcpus = 1', /base/],
    ['two bases', '[base]\ndebian = "sid"\ndirectory = "x"', /either "debian" or "directory"/],
    ['packages on a directory', '[base]\ndirectory = "x"\npackages = ["vim"]', /base\.packages: .*base\.debian/],
    ['an option as package', '[base]\ndebian = "sid"\npackages = ["--setup-hook=sh"]', /base\.packages\[0\]/],
    ['two packages in one name', '[base]\ndebian = "sid"\npackages = ["a1,b1"]', /base\.packages\[0\]/],
    ['an option as release', '[base]\ndebian = "--help"', /base\.debian/],
    ['too little memory', `memory_mib = 63\n${BASE}`, /memory_mib/],
    ['too much memory', `memory_mib = 65537\n${BASE}`, /memory_mib/],
    ['half a processor', `vcpus = 0.5\n${BASE}`, /vcpus/],
    ['a memory that is no number', `memory_mib = nan\n${BASE}`, /memory_mib/],
    ['text where a number belongs', `vcpus = "2"\n${BASE}`, /vcpus/],
    ['a relative file', file('path = "etc/x"\ncontent = ""'), /files\[0\]\.path: must be an absolute path/],
    ['a file that climbs', file('path = "/etc/../../x"\ncontent = ""'), /"\.\."/],
    ['a file that is the root', file('path = "/"\ncontent = ""'), /files\[0\]\.path/],
    ['a file under a mount', file('path = "/proc/x"\ncontent = ""'), /hidden by a mount/],
    ['a NUL in a path', file('path = "/a\\u0000b"\ncontent = ""'), /NUL/],
    ['a file without content', file('path = "/a"'), /either "content" or "source"/],
    ['a file with two contents', file('path = "/a"\ncontent = ""\nsource = "b"'), /either "content" or "source"/],
    ['a mode that is not octal', file('path = "/a"\ncontent = ""\nmode = "0888"'), /octal/],
    [
      'the same file twice',
      `${file('path = "/a"\ncontent = ""')}[[files]]\npath = "/a"\ncontent = ""`,
      /files\[1\].*twice/,
    ],
    ['a variable with "="', `${BASE}[env]\n"A=B" = "x"`, /environment variable/],
    ['a variable without name', `${BASE}[env]\n"" = "x"`, /environment variable/],
    ['a variable that is a number', `${BASE}[env]\nA = 1`, /env\.A/],
    ['a NUL in a value', `${BASE}[env]\nA = "x\\u0000"`, /env\.A: .*NUL/],
    ['code without a language', `${BASE}[warmup]\ncode = "x"`, /warmup\.code: needs "kernel"/],
    ['an unknown language', `${BASE}[warmup]\nkernel = "cobol"`, /warmup\.kernel/],
    ['an evaluation without a language', `${BASE}[ready]\neval = "x"`, /ready\.eval: needs warmup\.kernel/],
    ['port 0', `${BASE}[ready]\nport = 0`, /ready\.port/],
    ['no time at all', `${BASE}[ready]\ntimeout_secs = 0`, /ready\.timeout_secs/],
    ['a syntax error', `${BASE}\n[warmup\n`, /recipe\.toml:4:/],
    ['the same key twice', `vcpus = 1\nvcpus = 2\n${BASE}`, /recipe\.toml:2:/],
  ])('with %s is refused', (_what, text, message) => {
    expect(refusal(text)).toMatch(message);
  });

  it('cannot reach the prototype of an object', () => {
    expect(Object.keys(parseRecipe(`${BASE}[env]\n__proto__ = "x"`).env)).toEqual([]);
    expect(refusal(`${BASE}[__proto__]\npolluted = "x"`)).toMatch(/__proto__/);
    expect(Reflect.get({}, 'polluted')).toBeUndefined();
  });

  it('is refused with a bounded number of complaints', () => {
    const many = Array.from({ length: 100 }, () => '"-"').join();
    expect(refusal(`[base]\ndebian = "sid"\npackages = [${many}]`)).toMatch(/\(and 95 more\)$/);
  });
});

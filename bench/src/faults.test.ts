import { execFileSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { leaks } from '@forkd/controller';
import { describe, expect, it } from 'vitest';
import { demo, demoData, expectOneError, quickRecipe } from './testing.js';

const root = demoData();
const quick = quickRecipe(root);

describe('the demo', () => {
  it('shows what happened, proves it, draws it, and leaves nothing', async () => {
    const { code, stdout } = await demo(root, ['--n', '4']).ended;
    expect(code).toBe(0);
    expect(stdout).toContain('4 of 4 read back their own value');
    expect(stdout).toContain('4 different random numbers from 4');
    const picture = readFileSync(/Timeline: (.*)/.exec(stdout)![1]!, 'utf8');
    expect(picture).toMatch(/^<svg .*<\/svg>\n$/s);
    expect(picture.match(/<rect/g)!.length).toBe(4 * 3 + 3 + 1);
  });
});

describe('bad input', () => {
  it.each([
    [['--recipe', 'absent'], /there is no recipe "absent"/],
    [['--recipe', '../python-numpy'], /no recipe/],
    [['--recipe', '/no/such/recipe.toml'], /there is no recipe file \/no\/such\/recipe.toml/],
    [['--n', '0'], /n is 1 to 1000/],
    [['--n', 'many'], /n is 1 to 1000/],
    [['--accel', 'magic'], /accel is/],
    [['--colour'], /colour/],
  ])('%j ends with one message and a hint', async (args, message) => {
    const run = await demo(root, args).ended;
    expect(run.code).toBe(1);
    expectOneError(run, message);
  });

  it('a recipe with a wrong field says which, and what there is', async () => {
    const recipe = `${root}/recipe.toml`;
    writeFileSync(recipe, '[base]\ndebian = "bookworm"\npakages = ["python3"]\n');
    const run = await demo(root, ['--recipe', recipe]).ended;
    rmSync(recipe);
    expect(run.code).toBe(1);
    expectOneError(run, /pakages.*packages/);
  });

  it('is noticed before anything is built', async () => {
    const fresh = `${root}/fresh`;
    const run = await demo(fresh, ['--recipe', 'absent']).ended;
    expect(run.code).toBe(1);
    expect(existsSync(fresh)).toBe(false);
  });
});

describe('an unfit host', () => {
  it('without QEMU it names what to install', async () => {
    const bin = `${root}/bin`;
    mkdirSync(bin);
    const qemu = execFileSync('sh', ['-c', 'command -v qemu-system-x86_64']).toString().trim();
    for (const directory of (process.env.PATH ?? '').split(':'))
      for (const name of existsSync(directory) ? execFileSync('ls', [directory]).toString().split('\n') : [])
        if (name && `${directory}/${name}` !== qemu && !name.startsWith('qemu-') && !existsSync(`${bin}/${name}`))
          symlinkSync(`${directory}/${name}`, `${bin}/${name}`);
    const run = await demo(root, ['--n', '2'], { env: { PATH: bin } }).ended;
    rmSync(bin, { recursive: true });
    expect(run.code).toBe(1);
    expectOneError(run, /qemu-system-x86_64/);
  });

  it('without root it says so at once', async () => {
    chmodSync(root, 0o777);
    const run = await demo(root, ['--n', '2'], {
      through: ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups'],
    }).ended;
    expect(run.code).toBe(1);
    expectOneError(run, /root/);
  });
});

describe('an interrupted demo', () => {
  // What is given up at any other step is tested where the steps are: `controller/src/faults.test.ts`.
  it.each(['  boot ', '  zygote ', '  children   2/8'])(
    'by Ctrl-C at "%s" cleans up and ends with 130',
    async (moment) => {
      const { child, prints, ended } = demo(root, ['--n', '8', '--recipe', quick]);
      await prints(moment);
      child.kill('SIGINT');
      const run = await ended;
      expect(run.code).toBe(130);
      expectOneError(run, /interrupted/);
    },
  );

  it('by Ctrl-C twice still cleans up', async () => {
    const { child, prints, ended } = demo(root, ['--n', '8', '--recipe', quick]);
    await prints('  warm-up ');
    child.kill('SIGINT');
    child.kill('SIGINT');
    expect((await ended).code).toBe(130);
  });

  it('by SIGTERM cleans up', async () => {
    const { child, prints, ended } = demo(root, ['--n', '8', '--recipe', quick]);
    await prints('  warm-up ');
    child.kill('SIGTERM');
    const run = await ended;
    expect(run.code).toBe(130);
    expectOneError(run, /interrupted/);
  });

  it('by the end of whoever reads its output cleans up', async () => {
    const { child, prints, ended } = demo(root, ['--n', '8', '--recipe', quick]);
    await prints('  boot ');
    child.stdout!.destroy();
    expect((await ended).code).not.toBe(0);
  });

  it('by kill -9 takes its VMs along, and the next run removes the rest', async () => {
    const { child, prints, ended } = demo(root, ['--n', '8', '--recipe', quick]);
    await prints('  children   2/8');
    child.kill('SIGKILL');
    expect((await ended).signal).toBe('SIGKILL');
    await expect.poll(() => leaks(root).processes, { timeout: 2_000 }).toEqual([]);
    expect((await demo(root, ['--n', '1', '--recipe', quick]).ended).code).toBe(0);
  });
});

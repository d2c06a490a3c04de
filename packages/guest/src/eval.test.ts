import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { AgentFixture, until } from './agent.fixture.js';
import type { GuestClient } from './index.js';

describe.each(['python', 'node'] as const)('eval in %s', (language) => {
  let agent: AgentFixture;
  let guest: GuestClient;
  const run = (python: string, node: string, extra: object = {}) =>
    guest.eval({ language, code: language === 'python' ? python : node, ...extra });

  beforeAll(async () => {
    agent = await AgentFixture.start();
    guest = await agent.client();
    await guest.startKernel(language);
  });
  afterAll(() => agent.stop());

  it('keeps state and returns the last expression', async () => {
    expect(await run('x = 20', 'var x = 20;')).toMatchObject({ result: null, error: null, stdout: '' });
    expect((await run('y = x * 2\ny + 2', 'const y = x * 2;\ny + 2')).result).toBe('42');
  });

  it('separates output from the result, also that of subprocesses', async () => {
    const python = 'import os, sys\nprint("out ✓")\nsys.stderr.write("err")\nos.system("echo child")\n1';
    const node =
      'console.log("out ✓"); process.stderr.write("err"); require("child_process").execSync("echo child", { stdio: "inherit" }); 1';
    const heard: string[] = [];
    const done = await run(python, node, { onStdout: (text: string) => heard.push(text) });
    expect(done).toMatchObject({ result: '1', stdout: 'out ✓\nchild\n', stderr: 'err' });
    expect(heard.join('')).toBe('out ✓\nchild\n');
  });

  it('awaits at the top level', async () => {
    const python = 'import asyncio\nawait asyncio.sleep(0.01)\n"slept"';
    const node = 'await new Promise((done) => setTimeout(done, 10)); "slept"';
    expect((await run(python, node)).result).toBe("'slept'");
  });

  it('reports errors without its own frames', async () => {
    const { error } = await run('def f():\n  return 1/0\nf()', 'function f() { return null.x }\nf()');
    expect(error?.name).toBe(language === 'python' ? 'ZeroDivisionError' : 'TypeError');
    expect(error?.traceback).toMatch(language === 'python' ? /^Traceback .*line 2, in f\n/s : /at f \(/);
    expect(error?.traceback).not.toMatch(/kernel\.(py|cjs)/);
    expect((await run('1 +', 'let = = 1')).error?.name).toBe('SyntaxError');
    expect((await run('2', '2')).result).toBe('2');
  });

  it('interrupts code that runs too long and keeps the state', async () => {
    await run('z = 5', 'globalThis.z = 5');
    const started = Date.now();
    const late = await run('while True: pass', 'while (true) {}', { timeoutMs: 300 });
    expect(late.error?.name).toBe('TimeoutError');
    expect(Date.now() - started).toBeLessThan(2_000);
    expect((await run('z', 'z')).result).toBe('5');
  });

  it('interrupts on request and on abort', async () => {
    expect(await guest.interrupt(language)).toBe(false);
    const asked = run('import time\ntime.sleep(60)', 'await new Promise((done) => setTimeout(done, 60000))');
    await until(async () => (await guest.health()).kernels[language] === 'busy');
    expect(await guest.interrupt(language)).toBe(true);
    expect((await asked).error?.name).toBe('KeyboardInterrupt');

    const controller = new AbortController();
    const aborted = run('while True: pass', 'while (true) {}', { signal: controller.signal });
    await until(async () => (await guest.health()).kernels[language] === 'busy');
    controller.abort();
    await expect(aborted).rejects.toMatchObject({ code: 'cancelled' });
    await until(async () => (await guest.health()).kernels[language] === 'idle');
    expect((await run('z', 'z')).result).toBe('5');
  });

  it('serialises evals', async () => {
    await run('log = []', 'var log = []');
    const both = ['a', 'b', 'c'].map((name) => run(`log.append("${name}")`, `log.push("${name}"); undefined`));
    await Promise.all(both);
    expect((await run('len(log)', 'log.length')).result).toBe('3');
  });

  it('survives the death of the kernel', async () => {
    const died = await run(
      'import os\nos._exit(3)',
      'process.kill(process.pid, "SIGKILL"); await new Promise(() => {})',
    );
    expect(died.error?.name).toBe('KernelDied');
    expect((await run('1', '1')).result).toBe('1');
    expect((await run('z', 'z')).error?.name).toMatch(/NameError|ReferenceError/);
  });

  it('bounds a flood of output', async () => {
    const flood = await run('print("x" * 30_000_000)', 'console.log("x".repeat(30_000_000))', { maxOutputBytes: 1000 });
    expect(flood).toMatchObject({ truncated: true, error: null });
    expect(flood.stdout).toHaveLength(1000);
    expect((await run('3', '3')).result).toBe('3');
  });

  it('reseeds and updates the environment with the identity', async () => {
    const identity = {
      id: 'sb-1',
      parent: 'base',
      index: 0,
      count: 2,
      time_unix_ns: '1700000000000000000',
      entropy: Buffer.alloc(64, 7).toString('base64'),
      hostname: 'sb-1',
      env: { FORKD_TEST: 'yes' },
    };
    const draw = () => run('import random\nrandom.seed(1)\nrandom.random()', 'Math.random()');
    const before = (await draw()).result;
    expect(await guest.identity(identity)).toMatchObject({ id: 'sb-1', kernels: [language], hooks: [] });
    expect((await run('random.random()', 'Math.random()')).result).not.toBe(before);
    const env = await run('import os\nos.environ["FORKD_TEST"]', 'process.env.FORKD_TEST');
    expect(env.result).toBe("'yes'");
    expect((await guest.exec({ command: 'echo $FORKD_TEST' })).stdout).toBe('yes\n');
    expect((await guest.health()).identity).toBe('sb-1');
    await guest.identity({ ...identity, id: 'sb-2' });
    expect((await guest.health()).identity).toBe('sb-2');
    await expect(guest.identity({ ...identity, entropy: 'AAAA' })).rejects.toThrow(/64 bytes/);
  });

  it('settles', async () => {
    await guest.settle();
    expect((await run('4', '4')).result).toBe('4');
  });
});

describe('rich results', () => {
  it('offers other forms of a value', async () => {
    const agent = await AgentFixture.start();
    try {
      const guest = await agent.client();
      const code = 'class T:\n  def _repr_html_(self): return "<b>"\n  def _repr_png_(self): return b"png"\nT()';
      const { mime } = await guest.eval({ language: 'python', code });
      expect(mime).toEqual({ 'text/html': '<b>', 'image/png': Buffer.from('png').toString('base64') });
      await expect(guest.eval({ language: 'cobol' as 'python', code: '' })).rejects.toMatchObject({
        code: 'guest_error',
      });
    } finally {
      await agent.stop();
    }
  });
});

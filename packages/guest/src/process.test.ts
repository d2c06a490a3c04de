import { Readable } from 'node:stream';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { AgentFixture, isAlive, until } from './agent.fixture.js';
import type { GuestClient } from './index.js';

describe('processes', () => {
  let agent: AgentFixture;
  let guest: GuestClient;

  beforeAll(async () => {
    agent = await AgentFixture.start();
    guest = await agent.client();
  });
  afterAll(() => agent.stop());

  it('collects output and exit code', async () => {
    const done = await guest.exec({ command: 'echo out; echo err >&2; exit 3' });
    expect(done).toEqual({
      stdout: 'out\n',
      stderr: 'err\n',
      exitCode: 3,
      signal: null,
      timedOut: false,
      truncated: false,
    });
  });

  it('takes arguments, environment, directory and user as given', async () => {
    const done = await guest.exec({
      args: ['/bin/sh', '-c', 'echo "$1|$A|$HOME|$USER|$PWD"', 'sh', 'a b'],
      env: { A: 'é' },
      cwd: '/usr',
      user: 'root',
    });
    expect(done.stdout).toBe('a b|é|/root|root|/usr\n');
  });

  const INVALID = { code: 'invalid_request' };
  it('refuses an unknown user, a missing directory and a missing program', async () => {
    await expect(guest.exec({ command: 'true', user: 'nobody-here' })).rejects.toMatchObject(INVALID);
    await expect(guest.exec({ command: 'true', cwd: '/not/there' })).rejects.toMatchObject(INVALID);
    await expect(guest.exec({ args: ['/not/there'] })).rejects.toThrow(/cannot start/);
  });

  it('runs as another user', async () => {
    const done = await guest.exec({ command: 'id -un; id -gn; pwd', user: 'nobody', cwd: '/' });
    expect(done.stdout).toMatch(/^nobody\n\w+\n\/\n$/);
  });

  it('reports a signal by name', async () => {
    expect(await guest.exec({ command: 'kill -SEGV $$' })).toMatchObject({ exitCode: null, signal: 'SIGSEGV' });
  });

  it('feeds stdin from a string, bytes and a stream', async () => {
    const big = Buffer.alloc(1_000_000, 'x');
    expect((await guest.exec({ command: 'cat', stdin: 'hello' })).stdout).toBe('hello');
    expect((await guest.exec({ command: 'wc -c', stdin: big })).stdout.trim()).toBe('1000000');
    expect((await guest.exec({ command: 'wc -c', stdin: Readable.from([big, big]) })).stdout.trim()).toBe('2000000');
    expect(await guest.exec({ command: 'exit 4', stdin: big })).toMatchObject({ exitCode: 4 });
  });

  it('gives no stdin unless asked', async () => {
    expect((await guest.exec({ command: 'readlink /proc/self/fd/0' })).stdout).toBe('/dev/null\n');
  });

  it('kills the whole group when time runs out', async () => {
    const started = Date.now();
    const done = await guest.exec({ command: 'sleep 30 & echo $!; wait', timeoutMs: 300 });
    expect(done).toMatchObject({ timedOut: true, exitCode: null });
    expect(Date.now() - started).toBeLessThan(3_000);
    await until(() => !isAlive(Number(done.stdout)));
  });

  it('does not wait for a grandchild that holds the pipe', async () => {
    const done = await guest.exec({ command: 'sleep 5 & echo $!' });
    expect(done.exitCode).toBe(0);
    process.kill(Number(done.stdout));
  });

  it('streams, takes input, and is killed on request', async () => {
    const cat = await guest.start({ command: 'echo $$; exec cat', stdin: true });
    const output = cat[Symbol.asyncIterator]();
    expect((await output.next()).value?.data.toString()).toBe(`${cat.pid}\n`);
    await cat.write('ping');
    expect((await output.next()).value?.data.toString()).toBe('ping');
    await cat.kill('SIGTERM');
    expect((await output.next()).done).toBe(true);
    expect(await cat.wait()).toEqual({ exitCode: null, signal: 'SIGTERM', timedOut: false });
    await expect(cat.kill()).rejects.toMatchObject({ code: 'guest_error' });
  });

  it('ends input when told', async () => {
    const cat = await guest.start({ command: 'cat', stdin: true });
    await cat.write('x');
    await cat.closeStdin();
    await expect(cat.write('y')).rejects.toThrow(/closed|ended/);
    expect(await cat.wait()).toMatchObject({ exitCode: 0 });
  });

  it('gives a terminal that can be resized', async () => {
    const shell = await guest.start({ args: ['/bin/sh'], pty: { cols: 80, rows: 24 } });
    await shell.write('stty size\n');
    let text = '';
    for await (const { data } of shell) {
      text += data;
      if (!text.includes('24 80') || text.includes('resized')) continue;
      text += 'resized';
      await shell.resize({ cols: 100, rows: 40 });
      await shell.write('stty size; exit 7\n');
    }
    expect(text).toContain('40 100');
    expect(await shell.wait()).toMatchObject({ exitCode: 7 });
  });

  it.each(['abort', 'break', 'cut'] as const)('kills the process on %s', async (way) => {
    const own = await agent.client();
    const controller = new AbortController();
    const sleeper = await own.start({ command: 'echo started; sleep 60', signal: controller.signal });
    const iterate = async () => {
      for await (const _ of sleeper) {
        if (way === 'abort') controller.abort();
        if (way === 'cut') own.close();
        if (way === 'break') break;
      }
    };
    if (way === 'break') await iterate();
    else await expect(iterate()).rejects.toMatchObject({ code: 'cancelled' });
    await until(() => !isAlive(sleeper.pid));
  });

  it('holds a flooding process back instead of buffering', async () => {
    const flood = await guest.start({ command: 'yes', timeoutMs: 20_000 });
    const before = process.memoryUsage().rss;
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect(process.memoryUsage().rss - before).toBeLessThan(50 << 20);
    let seen = 0;
    for await (const { data } of flood) {
      seen += data.length;
      if (seen > 5_000_000) break;
    }
    await until(() => !isAlive(flood.pid));
  });

  it('keeps a bounded part of a flood', async () => {
    const done = await guest.exec({ command: 'yes | head -c 3000000', maxOutputBytes: 1000 });
    expect(done).toMatchObject({ truncated: true, exitCode: 0 });
    expect(done.stdout).toHaveLength(1000);
  });

  it('runs fifty processes at once', async () => {
    const runs = Array.from({ length: 50 }, (_, index) => guest.exec({ command: `echo ${index}` }));
    expect((await Promise.all(runs)).map(({ stdout }) => Number(stdout))).toEqual([...Array(50).keys()]);
  });
});

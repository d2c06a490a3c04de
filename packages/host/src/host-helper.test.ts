import { chmodSync, existsSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { HostHelper } from './host-helper.js';
import { gone, isAlive, spawnSpec, temporaryDirectory } from './testing.js';

const root = temporaryDirectory();
let helper: HostHelper;
beforeAll(() => {
  helper = HostHelper.start();
});
afterAll(() => helper[Symbol.asyncDispose]());

let next = 0;
const path = (): string => `${root}/${next++}`;

describe('a process', () => {
  it('its exit code is reported, also when it ends at once', async () => {
    for (const code of [0, 3]) {
      const { exited } = await helper.spawn(spawnSpec(path(), ['/bin/sh', '-c', `exit ${code}`]));
      expect(await exited).toEqual({ code, signal: null });
    }
  });

  it('the signal that ended it is reported', async () => {
    const { exited, kill } = await helper.spawn(spawnSpec(path(), ['sleep', '60']));
    expect(await kill('SIGTERM')).toBe(true);
    expect(await exited).toEqual({ code: null, signal: 15 });
    expect(await kill()).toBe(false);
  });

  it('its log has what it printed on both streams', async () => {
    const log = path();
    await (await helper.spawn(spawnSpec(log, ['/bin/sh', '-c', 'echo out; echo err >&2']))).exited;
    expect(readFileSync(log, 'utf8')).toBe('out\nerr\n');
  });

  it('a link is not taken as a log', async () => {
    const [log, target] = [path(), path()];
    symlinkSync(target, log);
    await expect(helper.spawn(spawnSpec(log, ['true']))).rejects.toThrow(/open the log/);
    expect(existsSync(target)).toBe(false);
  });

  it('its limits are in place', async () => {
    const rlimits = { nofile: 77, core: 0, fsize: 4096, nproc: 5000, memlock: 8192 };
    const child = await helper.spawn(spawnSpec(path(), ['sleep', '60'], { rlimits }));
    const limits = readFileSync(`/proc/${child.pid}/limits`, 'utf8');
    expect(limits).toMatch(/^Max open files +77 +77 /m);
    expect(limits).toMatch(/^Max core file size +0 +0 /m);
    expect(limits).toMatch(/^Max file size +4096 +4096 /m);
    expect(limits).toMatch(/^Max processes +5000 +5000 /m);
    expect(limits).toMatch(/^Max locked memory +8192 +8192 /m);
    await child.kill();
    // As long as it is watched, the numbers of descriptors are higher, and the shell of the next test knows only one digit.
    await child.exited;
  });

  it('has its standard streams and the named descriptors open, and nothing else', async () => {
    const [socket, file, log] = [path(), path(), path()];
    writeFileSync(file, 'content');
    const child = await helper.spawn(
      spawnSpec(log, ['/bin/sh', '-c', 'cat <&{fd:file}; sleep 60', 'socket is {fd:socket}'], {
        listen: [{ name: 'socket', path: socket }],
        open: [{ name: 'file', path: file }],
      }),
    );
    // Earlier, the dynamic loader may still have a library open.
    while (readFileSync(log, 'utf8') !== 'content') await new Promise((resolve) => setTimeout(resolve, 5));
    const [listening] = /\d+$/.exec(readFileSync(`/proc/${child.pid}/cmdline`, 'utf8').replace(/\0$/, ''))!;
    const open = readdirSync(`/proc/${child.pid}/fd`);
    expect(open).toHaveLength(5);
    expect(open).toEqual(expect.arrayContaining(['0', '1', '2', listening]));
    expect(existsSync(socket)).toBe(true);
    await child.kill();
  });
});

describe('a program that does not start', () => {
  it('is an error that names it, and leaves no socket', async () => {
    const socket = path();
    const listen = [{ name: 'socket', path: socket }];
    const spawned = helper.spawn(spawnSpec(path(), ['/no/such/program'], { listen }));
    await expect(spawned).rejects.toThrow('start /no/such/program: No such file or directory');
    expect(existsSync(socket)).toBe(false);
  });

  it('a file it should inherit that is missing is an error, and leaves no socket', async () => {
    const socket = path();
    const listen = [{ name: 'socket', path: socket }];
    const open = [{ name: 'file', path: '/no/such/file' }];
    await expect(helper.spawn(spawnSpec(path(), ['true'], { listen, open }))).rejects.toThrow('/no/such/file');
    expect(existsSync(socket)).toBe(false);
  });

  it('a socket path that is taken is an error, and stays as it was', async () => {
    const socket = path();
    writeFileSync(socket, 'mine');
    const listen = [{ name: 'socket', path: socket }];
    await expect(helper.spawn(spawnSpec(path(), ['true'], { listen }))).rejects.toThrow(socket);
    expect(readFileSync(socket, 'utf8')).toBe('mine');
  });
});

describe('the end of the helper', () => {
  const both = async (of: HostHelper) => ({
    tied: await of.spawn(spawnSpec(path(), ['sleep', '60'])),
    untied: await of.spawn(spawnSpec(path(), ['sleep', '60'], { tied: false })),
  });

  it('closed: tied processes have ended, others live on', async () => {
    const own = HostHelper.start();
    const { tied, untied } = await both(own);
    await own[Symbol.asyncDispose]();
    expect(isAlive(tied.pid)).toBe(false);
    expect(isAlive(untied.pid)).toBe(true);
    process.kill(untied.pid, 'SIGKILL');
  });

  it('killed: tied processes end, others live on, every call is refused', async () => {
    const own = HostHelper.start();
    const { tied, untied } = await both(own);
    const source = path();
    writeFileSync(source, Buffer.alloc(64 << 20, 1));
    const underWay = own.cloneFile(source, path());
    process.kill(own.pid!, 'SIGKILL');
    await expect(underWay).rejects.toThrow('the host helper ended');
    expect((await tied.exited).signal).toBe(9);
    expect(await gone(tied.pid, 1000)).toBe(true);
    expect(isAlive(untied.pid)).toBe(true);
    process.kill(untied.pid, 'SIGKILL');
    await expect(own.spawn(spawnSpec(path(), ['true']))).rejects.toThrow('the host helper ended');
    await own[Symbol.asyncDispose]();
  });

  it('not installed: every call says so, and how to get it', async () => {
    const own = HostHelper.start('', 'anywhere', '/no/such/helper');
    const calls = [own.measureTscKhz(), own.measureTscKhz()];
    for (const call of await Promise.allSettled(calls))
      expect(call).toMatchObject({ reason: { code: 'host_unfit', hint: 'Run `make build`.' } });
    await expect(own.measureTscKhz()).rejects.toMatchObject({ code: 'host_unfit' });
    await own[Symbol.asyncDispose]();
  });

  it('talking nonsense: calls are refused, and the program goes on', async () => {
    const fake = path();
    writeFileSync(fake, '#!/bin/sh\necho what >&3\nexec sleep 60 3>&3\n');
    chmodSync(fake, 0o755);
    const own = HostHelper.start('', 'anywhere', fake);
    await expect(own.measureTscKhz()).rejects.toThrow('the host helper broke its protocol');
    await own[Symbol.asyncDispose]();
  });
});

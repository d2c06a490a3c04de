import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { afterAll, expect, it } from 'vitest';
import { HostHelper } from './host-helper.js';
import { spawnSpec, temporaryDirectory } from './testing.js';

// What these calls do to a VM is in the contract of the engines; here is what they refuse.
const root = temporaryDirectory();
const helper = HostHelper.start();
afterAll(() => helper[Symbol.asyncDispose]());
const image = `${root}/memory.img`;
const diff = `${root}/memory.diff`;
writeFileSync(image, Buffer.alloc(8192));

it('a process that is gone, or that only has the pid of the wanted one, is not touched', async () => {
  const living = await helper.spawn(spawnSpec(`${root}/log`, ['sleep', '60']));
  const other = { pid: living.pid, startTime: living.startTime + 1 };
  const gone = await helper.spawn(spawnSpec(`${root}/log`, ['true']));
  await gone.exited;
  for (const name of [other, gone])
    for (const call of [
      () => helper.twin(name, image),
      () => helper.capture(name, image, diff),
      () => helper.inject(name, image, image),
    ])
      await expect(call()).rejects.toMatchObject({ code: 'vmm_exited' });
  expect(existsSync(diff)).toBe(false);
  await living.kill();
});

it('a process that does not have the image as its RAM is refused, and runs on', async () => {
  const living = await helper.spawn(spawnSpec(`${root}/log`, ['sleep', '60']));
  const refused = 'does not have the image as its RAM';
  await expect(helper.twin(living, image)).rejects.toThrow(refused);
  await expect(helper.capture(living, image, diff)).rejects.toThrow(refused);
  await expect(helper.inject(living, image, image)).rejects.toThrow(refused);
  await expect(helper.twin(living, `${root}/absent`)).rejects.toThrow('No such file');
  expect(existsSync(diff)).toBe(false);
  expect(readFileSync(`/proc/${living.pid}/stat`, 'utf8')).toMatch(/\) S /);
  await living.kill();
});

it('what a guard says is said when the caller is gone, unless it was taken back or nobody answers', async () => {
  const own = HostHelper.start();
  const servers: Server[] = [];
  const said: Record<string, string> = {};
  const listener = async (name: string, greets: boolean): Promise<string> => {
    const server = createServer((socket) => {
      said[name] ??= '';
      if (greets) socket.write('{"greeting":1}\n');
      socket.on('data', (chunk) => {
        said[name] = `${said[name]}${chunk}`;
        socket.write('{"event":"x"}\n{"return":{}}\n');
      });
      socket.on('error', () => {});
    });
    servers.push(server);
    await new Promise<void>((resolve) => server.listen(`${root}/${name}.sock`, resolve));
    return `${root}/${name}.sock`;
  };
  const names = ['kept', 'taken-back', 'mute'];
  for (const name of names) {
    const process = await own.spawn(spawnSpec(`${root}/log`, ['sleep', '60']));
    await own.guard(process, await listener(name, name !== 'mute'), ['first', 'second']);
    if (name === 'taken-back') await own.unguard(process);
  }
  const began = Date.now();
  await own[Symbol.asyncDispose]();
  expect(Date.now() - began).toBeLessThan(6000);
  expect(said).toEqual({ kept: 'first\nsecond\n', mute: '' });
  for (const server of servers) server.close();
});

import { createHash, randomBytes } from 'node:crypto';
import { chmod, mkdir, readdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { AgentFixture, until } from './agent.fixture.js';
import type { GuestClient } from './index.js';

describe('files', () => {
  let agent: AgentFixture;
  let guest: GuestClient;
  let root: string;

  beforeAll(async () => {
    agent = await AgentFixture.start();
    guest = await agent.client();
    root = join(agent.directory, 'root');
    await mkdir(root);
  });
  afterAll(() => agent.stop());

  it('writes and reads, creating parents', async () => {
    const path = join(root, 'a/b/ünï %41&=.txt');
    await guest.files.write(path, 'hello');
    expect((await guest.files.read(path)).toString()).toBe('hello');
    await guest.files.write(path, '');
    expect(await guest.files.read(path)).toHaveLength(0);
    expect((await guest.files.read('/proc/self/status')).toString()).toContain('forkd-agent');
  });

  it('streams large files both ways', async () => {
    const path = join(root, 'big');
    const chunk = randomBytes(1 << 20);
    const sent = createHash('sha256');
    const source = async function* () {
      for (let index = 0; index < 24; index++) {
        sent.update(chunk);
        yield chunk;
      }
    };
    await guest.files.writeStream(path, source());
    const received = createHash('sha256');
    const { size, stream } = await guest.files.readStream(path);
    expect(size).toBe(24 << 20);
    for await (const part of stream) received.update(part);
    expect(received.digest('hex')).toBe(sent.digest('hex'));
    await expect(guest.files.read(path, { maxBytes: 1000 })).rejects.toMatchObject({ code: 'too_large' });
  });

  it('replaces a file only by a whole one, keeping its mode and the link to it', async () => {
    const folder = join(root, 'whole');
    await guest.files.write(join(folder, 'f'), 'old');
    await chmod(join(folder, 'f'), 0o755);
    await symlink('f', join(folder, 'link'));
    const broken = async function* () {
      yield 'half';
      // Time for all of it to be on its way: then only a reset says that more was to come.
      await new Promise((resolve) => setTimeout(resolve, 20));
      throw new Error('the source is gone');
    };
    await expect(guest.files.writeStream(join(folder, 'f'), broken())).rejects.toMatchObject({
      code: 'invalid_request',
    });
    await expect(guest.files.writeStream(join(folder, 'new'), broken())).rejects.toThrow('the source failed');
    await until(async () => (await readdir(folder)).join() === 'f,link');
    expect(await readFile(join(folder, 'f'), 'utf8')).toBe('old');
    await guest.files.write(join(folder, 'link'), 'new');
    expect(await readFile(join(folder, 'f'), 'utf8')).toBe('new');
    expect(await guest.files.stat(join(folder, 'link'))).toMatchObject({
      mode: 0o755,
      symlinkTarget: join(folder, 'f'),
    });
    await guest.files.write('/proc/self/comm', 'renamed');
    expect((await guest.files.read('/proc/self/comm')).toString()).toBe('renamed\n');
  });

  it('names what is wrong', async () => {
    await expect(guest.files.read(join(root, 'none'))).rejects.toMatchObject({ code: 'file_not_found' });
    await expect(guest.files.read(root)).rejects.toMatchObject({ code: 'invalid_request' });
    await expect(guest.files.write(root, 'x')).rejects.toMatchObject({ code: 'invalid_request' });
    await expect(guest.files.write('/dev/full/x', 'x')).rejects.toMatchObject({ code: 'state_conflict' });
    await expect(guest.files.write('/proc/x', 'x')).rejects.toMatchObject({ code: 'file_not_found' });
    await expect(guest.files.remove('/proc/version')).rejects.toMatchObject({ code: 'not_permitted' });
    await expect(guest.files.stat(root, { user: 'nobody-here' })).rejects.toMatchObject({ code: 'invalid_request' });
    await expect(guest.files.stat(join(root, 'none'))).rejects.toMatchObject({ code: 'file_not_found' });
    await expect(guest.files.list(join(root, 'none'))).rejects.toMatchObject({ code: 'file_not_found' });
    await expect(guest.files.rename(join(root, 'none'), root)).rejects.toMatchObject({ code: 'file_not_found' });
    await expect(guest.files.stat('a\0b')).rejects.toMatchObject({ code: 'invalid_request' });
  });

  it('lists, stats, moves and removes', async () => {
    const folder = join(root, 'tree');
    expect(await guest.files.makeDir(join(folder, 'x/y'))).toBe(true);
    expect(await guest.files.makeDir(folder)).toBe(false);
    await guest.files.write(join(folder, 'x/f'), '12345');
    await expect(guest.files.makeDir(join(folder, 'x/f'))).rejects.toMatchObject({ code: 'invalid_request' });
    await symlink(join(folder, 'x/f'), join(folder, 'link'));
    const names = async (depth: number) =>
      (await guest.files.list(folder, { depth })).map(({ path }) => path.slice(folder.length));
    expect(await names(1)).toEqual(['/link', '/x']);
    expect(await names(3)).toEqual(['/link', '/x', '/x/f', '/x/y']);
    expect(await guest.files.stat(join(folder, 'x/f'))).toMatchObject({
      type: 'file',
      size: 5,
      permissions: '-rw-r--r--',
      owner: 'root',
    });
    expect(await guest.files.stat(join(folder, 'x'))).toMatchObject({ type: 'dir', permissions: 'drwxr-xr-x' });
    expect(await guest.files.stat(join(folder, 'link'))).toMatchObject({
      name: 'link',
      type: 'file',
      symlinkTarget: join(folder, 'x/f'),
    });
    await guest.files.rename(join(folder, 'x/f'), join(folder, 'new/parent/g'));
    expect(await guest.files.exists(join(folder, 'x/f'))).toBe(false);
    expect(await guest.files.exists(join(folder, 'new/parent/g'))).toBe(true);
    await guest.files.remove(folder);
    await guest.files.remove(folder);
    expect(await guest.files.exists(folder)).toBe(false);
  });

  it('gives files to the user who writes them', async () => {
    await guest.files.write(join(root, 'theirs/f'), 'x', { user: 'nobody' });
    expect(await guest.files.stat(join(root, 'theirs'))).toMatchObject({ owner: 'nobody' });
    expect(await guest.files.stat(join(root, 'theirs/f'))).toMatchObject({ owner: 'nobody' });
  });

  it('watches, also in folders that appear later', async () => {
    const folder = join(root, 'watched');
    await mkdir(folder);
    const events = await guest.files.watch(folder, { recursive: true });
    await mkdir(join(folder, 'sub'));
    await writeFile(join(folder, 'sub/f'), 'x');
    const seen: string[] = [];
    for await (const { name, type } of events) {
      seen.push(`${type} ${name}`);
      if (name === 'sub/f') break;
    }
    expect(seen[0]).toBe('create sub');
    expect(seen.at(-1)).toMatch(/^(create|write) sub\/f$/);
    await expect(guest.files.watch(join(root, 'none'))).rejects.toMatchObject({ code: 'file_not_found' });

    const controller = new AbortController();
    const aborted = await guest.files.watch(folder, { signal: controller.signal });
    controller.abort();
    await expect(aborted.next()).rejects.toMatchObject({ code: 'cancelled' });
  });

  it('leaves nothing half-read behind', async () => {
    const path = join(root, 'big');
    for await (const _ of (await guest.files.readStream(path)).stream) break;
    expect((await readFile(path)).length).toBe(24 << 20);
    expect((await guest.health()).protocol).toBe(1);
  });
});

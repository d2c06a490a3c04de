import type { Diff, SandboxInfo } from '@forkd/protocol';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Answer, TestDaemon } from './testing.js';

let daemon: TestDaemon;

beforeAll(async () => {
  daemon = await TestDaemon.plain();
});

afterAll(() => daemon.stop());

const say = (method: string, path: string, body?: object): Promise<Answer> => daemon.say(method, path, body);

const spawn = (tag = 'plain'): Promise<string> => daemon.spawn(tag);
const shell = (id: string, command: string): Promise<string> => daemon.shell(id, command);

async function diff(a: string, b: string): Promise<Diff> {
  const { status, body } = await say('GET', `/v1/diff?a=${a}&b=${b}`);
  expect(status, JSON.stringify(body)).toBe(200);
  return body;
}

const paths = (files: { path: string }[]): string[] => files.map(({ path }) => path).sort();

it('says which files, processes and pages differ, and leaves nothing behind', async () => {
  const id = await spawn();
  await shell(
    id,
    'mkdir /root/w; echo same > /root/w/touched; echo 1234 > /root/w/edited; echo x > /root/w/gone; sync',
  );
  await say('POST', `/v1/sandboxes/${id}/branch`, { tag: 'before' });
  await shell(
    id,
    [
      'sleep 1.1; touch /root/w/touched; echo 4321 > /root/w/edited; rm /root/w/gone; chmod 600 /etc/passwd',
      'mkdir /root/new; head -c 5000 /dev/zero > /root/new/file; ln -s file /root/new/link; rm /etc/debian_version',
      'head -c 4194304 /dev/urandom > /dev/shm/pages; (exec sleep 4242) > /dev/null 2>&1 &',
    ].join('\n'),
  );
  const found = await diff('before', id);
  expect([found.a, found.b]).toEqual(['before', id]);
  expect(paths(found.files.added)).toEqual(['/root/new', '/root/new/file', '/root/new/link']);
  expect(found.files.added.find(({ path }) => path === '/root/new/file')).toMatchObject({ type: 'file', size: 5000 });
  expect(paths(found.files.removed)).toEqual(['/etc/debian_version', '/root/w/gone']);
  expect(found.files.changed).toEqual(
    expect.arrayContaining([
      { path: '/root/w/edited', type: 'file', size: 5, size_before: 5 },
      expect.objectContaining({ path: '/etc/passwd' }),
    ]),
  );
  expect(paths(found.files.changed)).not.toContain('/root/w/touched');
  expect(found.files.truncated).toBe(false);
  expect(found.processes.added.map(({ command }) => command)).toContain('sleep 4242');
  expect(found.processes.removed.map(({ command }) => command)).not.toContain('sleep 4242');
  expect(found.memory.pages).toBe((128 << 20) / 4096);
  expect(found.memory.pages_changed).toBeGreaterThan((4 << 20) / 4096);
  expect(found.memory.pages_changed).toBeLessThan((64 << 20) / 4096);

  // The other way round, against the first of the line, and of what is paused; it stays so.
  await say('POST', `/v1/sandboxes/${id}/pause`);
  const back = await diff(id, 'plain');
  expect(paths(back.files.removed)).toEqual(expect.arrayContaining(['/root/new/file', '/root/w/touched']));
  expect(paths(back.files.added)).toEqual(['/etc/debian_version']);
  const itself = await diff('before', 'before');
  expect(itself).toMatchObject({ files: { added: [], changed: [], removed: [] }, memory: { pages_changed: 0 } });
  const listed: SandboxInfo[] = (await say('GET', '/v1/sandboxes')).body;
  expect(listed.map((sandbox) => [sandbox.id, sandbox.state])).toEqual([[id, 'paused']]);
  expect((await say('GET', '/v1/snapshots')).body.map(({ tag }: { tag: string }) => tag).sort()).toEqual([
    'before',
    'plain',
  ]);
});

it.each([
  ['a=plain', 400],
  ['a=plain&b=../x', 400],
  ['a=plain&b=absent', 404],
  [`a=plain&b=sb-${'0'.repeat(20)}`, 404],
  ['a=plain&b=plain&c=1', 400],
])('%s is refused', async (query, status) => {
  expect((await say('GET', `/v1/diff?${query}`)).status).toBe(status);
});

it('a guest with more files than are shown', async () => {
  const id = await spawn();
  await shell(id, 'mkdir /root/many; cd /root/many; for i in $(seq 1200); do : > f$i; done');
  const { files } = await diff('plain', id);
  expect([files.added.length, files.truncated]).toEqual([1000, true]);
});

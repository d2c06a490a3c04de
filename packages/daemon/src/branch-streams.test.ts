import type { SandboxInfo } from '@forkd/protocol';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { TestDaemon } from './testing.js';

let daemon: TestDaemon;

beforeAll(async () => {
  daemon = await TestDaemon.start();
  expect((await say('POST', '/v1/snapshots', { tag: 'numpy', recipe: 'python-numpy' })).status).toBe(201);
});

afterAll(async () => {
  for (const { id } of (await say('GET', '/v1/sandboxes')).body) await say('DELETE', `/v1/sandboxes/${id}`);
  await daemon[Symbol.asyncDispose]();
});

function say(method: string, path: string, body?: object) {
  return daemon.call(path, { method, ...(body && { body: JSON.stringify(body) }) });
}

async function spawn(snapshot_tag: string, n = 1): Promise<string[]> {
  const { status, body } = await say('POST', '/v1/sandboxes', { snapshot_tag, n });
  expect(status, JSON.stringify(body)).toBe(201);
  return (body as SandboxInfo[]).map(({ id }) => id);
}

it('what a guest was telling when it was branched does not reach those who talk to its children', async () => {
  const [source] = await spawn('numpy');
  const abort = new AbortController();
  const talk = fetch(`${daemon.url}/v1/sandboxes/${source}/exec`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', accept: 'application/x-ndjson' },
    body: JSON.stringify({ args: ['yes'], timeout_secs: 100 }),
    signal: abort.signal,
  }).then(async (reply) => {
    let heard = 0;
    for await (const chunk of reply.body!) heard += chunk.length;
    return heard;
  });
  talk.catch(() => {});
  await new Promise((done) => setTimeout(done, 500));
  for (let time = 0; time < 6; time++) {
    const { status, body } = await say('POST', `/v1/sandboxes/${source}/branch`, { tag: `talking-${time}` });
    expect(status, JSON.stringify(body)).toBe(201);
    for (const id of await spawn(`talking-${time}`, time === 0 ? 4 : 1)) {
      expect((await say('POST', `/v1/sandboxes/${id}/eval`, { code: '6 * 7' })).body.result).toBe('42');
      await say('DELETE', `/v1/sandboxes/${id}`);
    }
    await say('DELETE', `/v1/snapshots/talking-${time}`);
  }
  abort.abort();
  expect((await say('POST', `/v1/sandboxes/${source}/eval`, { code: '6 * 7' })).body.result).toBe('42');
});

it('code that is evaluated can fork the sandbox: it goes on in the source, and leaves a kernel that works in the child', async () => {
  const { body } = await say('POST', '/v1/sandboxes', { snapshot_tag: 'numpy', guest_branch: true });
  const path = `/v1/sandboxes/${body[0].id}/eval`;
  const code =
    'import subprocess; x = 7; subprocess.check_output(["forkd-guest", "branch", "--fork", "1"], text=True).split()';
  const { result, error } = (await say('POST', path, { code })).body;
  expect(error).toBe(null);
  const [, child] = /'source', '[^']+', '(sb-\w+)'/.exec(result)!;
  expect((await say('POST', `/v1/sandboxes/${child}/eval`, { code: 'x + 1' })).body.result).toBe('8');
  expect((await say('POST', path, { code: 'x + 2' })).body.result).toBe('9');
});

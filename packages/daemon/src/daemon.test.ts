import { ErrorBody, type SandboxInfo } from '@forkd/protocol';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { TestDaemon, TOKEN } from './testing.js';

let daemon: TestDaemon;

beforeAll(async () => {
  daemon = await TestDaemon.secured();
});
afterAll(() => daemon.stop());

describe('without a VM', () => {
  it('health needs no token, everything else does', async () => {
    expect((await fetch(`${daemon.url}/healthz`)).status).toBe(200);
    for (const path of [
      '/version',
      '/metrics',
      '/v1/snapshots',
      '/nowhere',
      '/healthz/x',
      '/HEALTHZ',
      '/healthz?x',
      '/%68ealthz',
    ]) {
      const reply = await fetch(daemon.url + path);
      expect([path, reply.status]).toEqual([path, 401]);
      expect(ErrorBody.parse(await reply.json()).error).toBe('missing bearer token');
    }
    for (const wrong of ['Bearer wrong', `Bearer ${TOKEN}x`, `Bearer ${TOKEN.slice(1)}`]) {
      const reply = await daemon.say('GET', '/version', undefined, { authorization: wrong });
      expect([reply.status, reply.body.error]).toEqual([401, 'invalid bearer token']);
    }
    expect((await daemon.say('GET', '/version', undefined, { authorization: `bearer ${TOKEN}` })).status).toBe(401);
  });

  it('version and metrics are those of forkd', async () => {
    expect((await daemon.say('GET', '/version')).body).toMatchObject({ api: 'v1' });
    const { body } = await daemon.say('GET', '/metrics');
    for (const name of [
      'snapshots_total',
      'sandboxes_active',
      'branches_in_flight',
      'branch_concurrency_cap',
      'build_info',
    ])
      expect(body).toContain(`forkd_${name}`);
  });

  it.each([
    ['bad JSON', 'POST', '/v1/sandboxes', '{"n":', 400, 'invalid_request'],
    ['an empty body', 'POST', '/v1/sandboxes', '', 400, 'invalid_request'],
    ['a wrong type', 'POST', '/v1/sandboxes', { snapshot_tag: 'x', n: '3' }, 400, 'invalid_request'],
    ['an unknown field', 'POST', '/v1/sandboxes', { snapshot_tag: 'x', colour: 1 }, 400, 'invalid_request'],
    ['a prototype', 'POST', '/v1/sandboxes', '{"__proto__":{"n":1},"snapshot_tag":"x"}', 400, 'invalid_request'],
    ['a tag that climbs', 'POST', '/v1/sandboxes', { snapshot_tag: '../x' }, 400, 'invalid_request'],
    ['an absent tag', 'POST', '/v1/sandboxes', { snapshot_tag: 'absent' }, 404, 'snapshot_not_found'],
    ['an absent sandbox', 'GET', '/v1/sandboxes/sb-00000000000000000000', undefined, 404, 'sandbox_not_found'],
    ['an id that is none', 'GET', '/v1/sandboxes/..%2f..%2fetc', undefined, 400, 'invalid_request'],
    ['an unknown route', 'GET', '/v1/nothing', undefined, 404, 'route_not_found'],
    ['a wrong method', 'DELETE', '/v1/snapshots', undefined, 405, 'method_not_allowed'],
    ['an unknown recipe', 'POST', '/v1/snapshots', { tag: 'a', recipe: 'absent' }, 404, 'recipe_not_found'],
    ['a branch', 'POST', '/v1/sandboxes/sb-00000000000000000000/branch', {}, 404, 'sandbox_not_found'],
    ['cascade and force', 'DELETE', '/v1/snapshots/a?cascade=true&force=true', undefined, 400, 'invalid_request'],
  ])('%s is answered with the one error shape', async (_, method, path, body, status, code) => {
    const reply = await daemon.say(method, path, body);
    expect([reply.status, ErrorBody.parse(reply.body).code]).toEqual([status, code]);
    expect(reply.body.hint).not.toBe('');
    expect(JSON.stringify(reply.body)).not.toContain(daemon.parent);
  });

  it('a body that is not JSON or far too large is refused as such', async () => {
    const text = await daemon.say('POST', '/v1/sandboxes', 'x', { 'content-type': 'text/plain' });
    expect([text.status, text.body.code]).toEqual([415, 'unsupported_media_type']);
    // Answered before it has been sent.
    const head = `Host: x\r\nConnection: close\r\nAuthorization: Bearer ${TOKEN}\r\nContent-Type: application/json`;
    const large = await daemon.raw(
      `POST /v1/sandboxes HTTP/1.1\r\n${head}\r\nContent-Length: ${17 << 20}\r\n\r\n`,
      true,
    );
    expect(large).toMatch(/^HTTP\/1.1 413 .*"code":"too_large"/s);
  });

  it('bytes that are not HTTP do not hurt it', async () => {
    await daemon.raw('\0\u0001nonsense\r\n\r\n');
    expect((await fetch(`${daemon.url}/healthz`)).status).toBe(200);
  });
});

describe('with VMs', () => {
  it('a walk through the API: recipe, spawn, eval, exec, kill', async () => {
    const created = await daemon.say('POST', '/v1/snapshots', { tag: 'numpy', recipe: 'python-numpy' });
    expect([created.status, created.body.status]).toEqual([201, 'ready']);
    expect((await daemon.say('POST', '/v1/snapshots', { tag: 'numpy', recipe: 'python-numpy' })).status).toBe(409);
    expect((await daemon.say('GET', '/v1/snapshots/numpy/info')).body).toMatchObject({
      memory_logical_bytes: 256 << 20,
    });

    const spawned = await daemon.say('POST', '/v1/sandboxes', {
      snapshot_tag: 'numpy',
      n: 3,
      per_child_netns: true,
      env: { A: 'b' },
    });
    expect(spawned.status).toBe(201);
    const ids = (spawned.body as SandboxInfo[]).map(({ id }) => id);
    expect(new Set(ids).size).toBe(3);
    expect((await daemon.say('GET', '/v1/sandboxes')).body.length).toBe(3);
    expect((await daemon.say('DELETE', '/v1/snapshots/numpy')).status).toBe(409);

    const path = `/v1/sandboxes/${ids[0]}`;
    expect((await daemon.say('POST', `${path}/ping`)).body).toMatchObject({ pong: true });
    expect((await daemon.say('POST', `${path}/eval`, { code: 'numpy.zeros(2).tolist()' })).body).toMatchObject({
      result: '[0.0, 0.0]',
      exit_code: 0,
    });
    const raised = (await daemon.say('POST', `${path}/eval`, { code: '1 / 0' })).body;
    expect(raised.exit_code).toBe(1);
    expect(raised.error).toContain('ZeroDivisionError');
    const done = await daemon.say('POST', `${path}/exec`, { args: ['sh', '-c', 'echo $A; cat; exit 3'], stdin: 'in' });
    expect(done.body).toMatchObject({ stdout: 'b\nin', exit_code: 3, timed_out: false });
    const slow = await daemon.say('POST', `${path}/exec`, { args: ['sleep', '60'], timeout_secs: 1 });
    expect(slow.body).toMatchObject({ exit_code: 124, timed_out: true });

    const settled = await daemon.say('POST', '/v1/sandboxes?settle=true', { snapshot_tag: 'numpy', n: 2 });
    expect(settled.body.results.length).toBe(2);
    for (const { id } of (await daemon.say('GET', '/v1/sandboxes')).body)
      expect((await daemon.say('DELETE', `/v1/sandboxes/${id}`)).status).toBe(204);
    expect((await daemon.say('DELETE', path)).status).toBe(404);
    expect((await daemon.say('DELETE', '/v1/snapshots/numpy')).status).toBe(204);
  });

  it('what runs goes on when the daemon ends, in order or not, and belongs to the next one', async () => {
    await daemon.say('POST', '/v1/snapshots', { tag: 'left', recipe: 'python-numpy' });
    const { body: left } = await daemon.say('POST', '/v1/sandboxes', { snapshot_tag: 'left', n: 3 });
    const ids = (left as SandboxInfo[]).map(({ id }) => id).sort();
    for (const signal of ['SIGTERM', 'SIGKILL'] as const) {
      daemon.signal(signal);
      await daemon.restart();
      const { body } = await daemon.say('GET', '/v1/sandboxes');
      expect((body as SandboxInfo[]).map(({ id }) => id).sort()).toEqual(ids);
      for (const id of ids)
        expect((await daemon.say('POST', `/v1/sandboxes/${id}/eval`, { code: '6 * 7' })).body.result).toBe('42');
    }
    for (const id of ids) expect((await daemon.say('DELETE', `/v1/sandboxes/${id}`)).status).toBe(204);
  });
});

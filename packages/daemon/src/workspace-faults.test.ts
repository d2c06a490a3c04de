import { readdirSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import type { SandboxInfo, WorkspaceInfo } from '@forkd/protocol';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { plainRecipes, TestDaemon, temporaryData } from './testing.js';

let daemon: TestDaemon;

beforeAll(async () => {
  const root = temporaryData();
  daemon = await TestDaemon.start(['--recipes', plainRecipes(root)], root);
  expect((await daemon.say('POST', '/v1/snapshots', { tag: 'plain', recipe: 'plain' })).status).toBe(201);
});

afterAll(() => daemon.stop());

async function desk(): Promise<WorkspaceInfo | undefined> {
  return (await daemon.say('GET', '/v1/workspaces')).body[0];
}

/** Kills the daemon a moment after it was asked for something, and starts it again. */
async function interrupt(path: string, body: object | undefined, afterMs: number): Promise<void> {
  const asked = daemon.say('POST', path, body).catch(() => {});
  await sleep(afterMs);
  daemon.signal('SIGKILL');
  await asked;
  await daemon.restart();
}

/** What is there is the workspace's: its sandbox if it is running, its state if it has one. */
async function expectNoStrays(): Promise<void> {
  const workspace = await desk();
  const ids = (await daemon.say('GET', '/v1/sandboxes')).body.map(({ id }: SandboxInfo) => id);
  expect(ids).toEqual(workspace?.live_sandbox_id ? [workspace.live_sandbox_id] : []);
  const state = workspace?.current_state_tag ? [workspace.current_state_tag] : [];
  expect(readdirSync(`${daemon.root}/snapshots`).sort()).toEqual(['plain', ...state]);
}

it('a workspace whose daemon is killed while it is made, put away or taken out is there whole or not at all', async () => {
  const wanted = { name: 'desk', snapshot_tag: 'plain' };
  for (const afterMs of [10, 60]) {
    await interrupt('/v1/workspaces', wanted, afterMs);
    await expectNoStrays();
    if ((await desk()) !== undefined) await daemon.say('DELETE', '/v1/workspaces/desk');
  }
  expect((await daemon.say('POST', '/v1/workspaces', wanted)).status).toBe(201);
  for (const [number, afterMs] of [5, 60, 120, 180, 240].entries()) {
    const { live_sandbox_id: id } = (await desk())!;
    await daemon.shell(id!, `echo ${number} > /root/number`);
    await interrupt('/v1/workspaces/desk/suspend', undefined, afterMs);
    await expectNoStrays();
    if ((await desk())?.status === 'running') await daemon.say('POST', '/v1/workspaces/desk/suspend');
    expect((await desk())?.status).toBe('suspended');
    await interrupt('/v1/workspaces/desk/resume', undefined, afterMs);
    await expectNoStrays();
    if ((await desk())?.status === 'suspended') await daemon.say('POST', '/v1/workspaces/desk/resume');
    const { live_sandbox_id: next } = (await desk())!;
    expect(await daemon.shell(next!, 'cat /root/number')).toBe(String(number));
  }
});

it('one whose sandbox is paused is running still, and can be put away as it is', async () => {
  const { live_sandbox_id: id } = (await desk())!;
  expect((await daemon.say('POST', `/v1/sandboxes/${id}/pause`)).status).toBe(200);
  expect(await desk()).toMatchObject({ status: 'running', live_sandbox_id: id });
  expect((await daemon.say('POST', '/v1/workspaces/desk/suspend')).body.status).toBe('suspended');
  expect((await daemon.say('POST', '/v1/workspaces/desk/resume')).body.status).toBe('running');
  expect(await daemon.shell((await desk())!.live_sandbox_id!, 'cat /root/number')).toBe('4');
  expect((await daemon.say('DELETE', '/v1/workspaces/desk')).status).toBe(204);
  await expectNoStrays();
});

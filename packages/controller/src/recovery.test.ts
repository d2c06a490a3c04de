import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { runs as isAlive } from './processes.js';
import { close, dataDirectory, openController, plainRecipe, startProgram, until } from './testing.js';

const root = dataDirectory();
beforeAll(async () => {
  const controller = await openController(root);
  await controller.createSnapshot({ tag: 'plain', recipe: await plainRecipe(), recipeName: 'plain' });
  await close(controller);
});

/** Whatever a test leaves, the last daemon ends. */
afterAll(async () => {
  const controller = await openController(root, true);
  await Promise.all(controller.sandboxes().map((sandbox) => sandbox.kill()));
  await close(controller);
});

async function killed() {
  const { child, born } = await startProgram(root, 'plain', true);
  child.kill('SIGKILL');
  await once(child, 'exit');
  return born;
}

it('sandboxes of a daemon that was killed are taken over, and can be used and ended', async () => {
  const born = await killed();
  await using controller = await openController(root, true);
  expect(controller.sandboxes().map(({ id }) => id)).toEqual(expect.arrayContaining(born.map(({ id }) => id)));
  for (const { id, pid } of born) {
    const sandbox = controller.runningSandbox(id);
    expect(sandbox.vm.pid).toBe(pid);
    expect((await sandbox.guest.exec({ command: 'hostname' })).stdout.trim()).toBe(id);
  }
  await controller.pause(born[0]!.id);
  await controller.kill(born[1]!.id);
  expect(isAlive(born[1]!.pid)).toBe(false);
  process.kill(born[2]!.pid, 'SIGKILL');
  await until(() => controller.record(born[2]!.id).state === 'exited', 5000);
  expect(controller.record(born[2]!.id).exit_reason).toContain('unexpectedly');
  await controller[Symbol.asyncDispose]();
  await controller.helper[Symbol.asyncDispose]();

  // Ended in order this time: what runs goes on running, what was paused stays paused.
  const again = await openController(root, true);
  expect(again.record(born[0]!.id).state).toBe('paused');
  expect(() => again.runningSandbox(born[0]!.id)).toThrowError(expect.objectContaining({ code: 'state_conflict' }));
  await again.resume(born[0]!.id);
  expect((await again.runningSandbox(born[0]!.id).guest.health()).identity).toBe(born[0]!.id);
  await again.kill(born[0]!.id);
  expect(again.sandboxes()).toEqual([]);
  await close(again);
});

it('what is not whole is ended and removed, what was lost is said to be', async () => {
  const born = await killed();
  const [first, second, third] = born;
  process.kill(first!.pid, 'SIGKILL');
  await until(() => !isAlive(first!.pid), 5000);
  mkdirSync(`${root}/run/daemon/snapshot-half`);
  writeFileSync(`${root}/run/daemon/snapshot-half/memory.img`, 'x');
  // As if the daemon had been killed before it could record that the second one is ready.
  const { SqliteStore } = await import('./store/sqlite-store.js');
  const store = new SqliteStore(`${root}/state.db`);
  store.removeSandbox(second!.id);
  const writing = { owner: 'local', status: 'writing', created_at: 1, recipe: null, warning: null } as const;
  store.addSnapshot({ tag: 'half', ...writing });
  store.close();

  const controller = await openController(root, true);
  expect(controller.sandboxes().map(({ id }) => id)).toEqual([third!.id]);
  expect(isAlive(second!.pid)).toBe(false);
  expect(controller.record(first!.id)).toMatchObject({
    state: 'exited',
    exit_reason: expect.stringContaining('ended'),
  });
  expect(readdirSync(`${root}/run/daemon`)).toEqual([third!.id]);
  expect(await controller.viewSnapshot('half')).toMatchObject({ status: 'failed' });
  await expect(controller.spawn({ tag: 'half', n: 1 })).rejects.toMatchObject({ code: 'state_conflict' });
  await controller.removeSnapshot('half');
  expect(controller.events.since(0).map(({ type, sandbox_id }) => [type, sandbox_id])).toContainEqual([
    'crashed',
    first!.id,
  ]);
  await controller.kill(third!.id);
  await close(controller);
});

it('a memory limit holds, and its cgroup goes with the sandbox', async () => {
  const controller = await openController(root, true);
  const [result] = await controller.spawn({ tag: 'plain', n: 1, memoryLimitMib: 32 });
  if (!result?.ok) throw result?.error;
  const { id, vm, guest } = result.sandbox;
  const cgroup = readFileSync(`/proc/${vm.pid}/cgroup`, 'utf8')
    .split('\n')
    .find((line) => line.endsWith(`/${id}`))!;
  const path = `/sys/fs/cgroup/${cgroup.includes(':memory:') ? 'memory' : ''}${cgroup.split(':')[2]}`;
  expect(existsSync(path)).toBe(true);
  const filled = guest.exec({
    command: 'dd if=/dev/zero of=/dev/shm/x bs=1M count=56 2>/dev/null',
    timeoutMs: 30_000,
  });
  await expect(filled).rejects.toMatchObject({ code: 'vmm_exited' });
  await until(() => controller.record(id).state === 'exited', 5000);
  expect(controller.record(id).exit_reason).toBe('out of memory: limit 32 MiB');
  const told = controller.events.since(0).find(({ sandbox_id, type }) => sandbox_id === id && type === 'crashed');
  expect(told?.message).toBe('out of memory: limit 32 MiB');
  expect(existsSync(path)).toBe(false);
  await close(controller);
});

it('two daemons never own the same data directory', async () => {
  const controller = await openController(root, true);
  await expect(openController(root, true)).rejects.toMatchObject({
    code: 'host_unfit',
    message: expect.stringContaining('another daemon'),
  });
  await close(controller);
});

it('a sandbox ends when its time is up, and is remembered', async () => {
  const controller = await openController(root, true);
  const [result] = await controller.spawn({ tag: 'plain', n: 1, ttl: 1, owner: 'ann', metadata: { a: 'b' } });
  if (!result?.ok) throw result?.error;
  const { id, vm } = result.sandbox;
  await until(() => controller.record(id).state === 'exited', 8000);
  expect(controller.record(id)).toMatchObject({ exit_reason: 'expired', owner: 'ann', metadata: { a: 'b' } });
  expect(isAlive(vm.pid)).toBe(false);
  expect(existsSync(`${root}/run/daemon/${id}`)).toBe(false);
  expect(() => controller.sandbox(id)).toThrowError(expect.objectContaining({ code: 'state_conflict' }));
  await close(controller);
});

it('a workspace whose daemon was killed just after it was saved keeps that state and nothing of the one before', async () => {
  const first = await openController(root, true);
  const { workspaces, store } = first;
  await workspaces.create({ name: 'bench', snapshotTag: 'plain', owner: 'local' });
  const { state_tag: before } = await workspaces.suspend('bench');
  const { sandbox_id } = await workspaces.resume('bench');
  const after = 'ws-bench-after';
  await first.beginBranch(sandbox_id!, { tag: after, mode: 'live', owner: 'local' }).done;
  store.changeWorkspace('bench', { status: 'suspended', state_tag: after, spare_tag: before });
  await close(first);

  const next = await openController(root, true);
  expect(next.workspaces.get('bench')).toMatchObject({ status: 'suspended', state_tag: after, sandbox_id: null });
  expect([next.sandboxes(), readdirSync(`${root}/snapshots`).sort()]).toEqual([[], ['plain', after].sort()]);
  await next.workspaces.resume('bench');
  await next.workspaces.delete('bench');
  await close(next);
});

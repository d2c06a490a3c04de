import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, rmSync, statfsSync } from 'node:fs';
import { setImmediate as turn } from 'node:timers/promises';
import { processesUsing } from '@forkd/controller';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { plainRecipes, TestDaemon, temporaryData } from './testing.js';

let daemon: TestDaemon;
let source: string;
let processes: number[];

beforeAll(async () => {
  const root = temporaryData('900m');
  daemon = await TestDaemon.start(['--recipes', plainRecipes(root)], root);
  expect((await daemon.say('POST', '/v1/snapshots', { tag: 'plain', recipe: 'plain' })).status).toBe(201);
  source = await daemon.spawn('plain');
  // More than what is left is to be written; nothing of the guest's own is.
  await daemon.shell(source, 'head -c 45M /dev/urandom > /dev/shm/big; sync');
  processes = processesUsing(root);
  empty();
});

afterEach(async () => {
  empty();
  expect(await daemon.shell(source, 'hostname')).toBe(source);
  expect(processesUsing(daemon.root)).toEqual(processes);
  expect(readdirSync(`${daemon.root}/run/daemon`).filter((name) => name.startsWith('snapshot-'))).toEqual([]);
  expect(readdirSync(`${daemon.root}/snapshots`)).toEqual(['plain']);
});

afterAll(() => daemon.stop());

it.each(['live', 'diff'])('mode %s: a disk with too little room is full half-way', async (mode) => {
  fill(36);
  const { status, body } = await branch({ tag: 'no-room', mode });
  expect([status, body.code, body.error]).toEqual([507, 'disk_full', expect.stringMatching(/full|space/)]);
  expect((await daemon.say('GET', '/v1/snapshots/no-room')).status).toBe(404);
});

it('mode full: what does not fit is not begun; what somebody else fills meanwhile is full half-way', async () => {
  fill(140);
  const refused = await branch({ tag: 'no-room', mode: 'full' });
  expect([refused.status, refused.body.error]).toEqual([507, expect.stringMatching(/needs \d+ MiB, \d+ MiB are free/)]);
  // Whoever fills the disk may come too late.
  for (let attempt = 0; attempt < 10; attempt++) {
    empty();
    // Just enough for it: what is left is filled in a moment.
    fill(165);
    const branching = branch({ tag: 'no-room', mode: 'full' });
    while (!existsSync(`${daemon.root}/run/daemon/snapshot-no-room`)) await turn();
    fill(0);
    const { status, body } = await branching;
    if (status === 507) {
      expect(body.code).toBe('disk_full');
      expect((await daemon.say('GET', '/v1/snapshots/no-room')).status).toBe(404);
      return;
    }
    expect(status, body.error).toBe(201);
    expect((await daemon.say('DELETE', '/v1/snapshots/no-room')).status).toBe(204);
  }
  throw new Error('the disk was never full in time');
});

it('those who do not wait find the tag failed, and why', async () => {
  fill(36);
  expect((await branch({ tag: 'no-room', wait: false })).status).toBe(202);
  let info = { status: 'writing', warning: '' };
  while (info.status === 'writing') info = (await daemon.say('GET', '/v1/snapshots/no-room')).body;
  expect(info).toMatchObject({ status: 'failed', bootable: false, warning: expect.stringMatching(/full|space/) });
  const spawned = await daemon.say('POST', '/v1/sandboxes', { snapshot_tag: 'no-room' });
  expect([spawned.status, spawned.body.details]).toEqual([409, expect.objectContaining({ state: 'failed' })]);
  expect((await daemon.say('DELETE', '/v1/snapshots/no-room')).status).toBe(204);
});

it('with room again it is branched as if nothing had been', async () => {
  expect((await branch({ tag: 'room' })).status).toBe(201);
  const child = await daemon.spawn('room');
  const sums = await Promise.all([source, child].map((id) => daemon.shell(id, 'sha256sum /dev/shm/big')));
  expect(sums[1]).toBe(sums[0]);
  await daemon.say('DELETE', `/v1/sandboxes/${child}`);
  expect((await daemon.say('DELETE', '/v1/snapshots/room')).status).toBe(204);
});

it('a guest that finds no room on the host is told of an error, and goes on', async () => {
  const writer = await daemon.spawn('plain');
  fill(0);
  const command = 'head -c 30M /dev/urandom > /root/big && sync /root/big';
  const { body } = await daemon.say('POST', `/v1/sandboxes/${writer}/exec`, { args: ['sh', '-c', command] });
  expect(body.exit_code, JSON.stringify(body)).not.toBe(0);
  empty();
  expect(await daemon.shell(writer, 'hostname')).toBe(writer);
  expect((await daemon.say('DELETE', `/v1/sandboxes/${writer}`)).status).toBe(204);
});

/** The disk has room again. */
function empty(): void {
  rmSync(`${daemon.root}/filler`, { recursive: true, force: true });
  mkdirSync(`${daemon.root}/filler`);
}

function branch(body: object) {
  return daemon.say('POST', `/v1/sandboxes/${source}/branch`, body);
}

/** All of the disk but so many MiB, also while somebody else is taking of it. */
function fill(leave: number): void {
  for (let attempt = 1; ; attempt++) {
    const { bavail, bsize } = statfsSync(daemon.root);
    const left = bavail * bsize - (leave << 20);
    if (left < 1 << 20) return;
    const { status } = spawnSync('fallocate', ['-l', `${left}`, `${daemon.root}/filler/${attempt}`]);
    if (status !== 0) spawnSync('fallocate', ['-l', `${Math.floor(left / 2)}`, `${daemon.root}/filler/${attempt}`]);
  }
}

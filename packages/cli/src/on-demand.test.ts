import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { testData } from '@forkd/sdk/testing';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { finished, forkd, startForkd } from './testing.js';

let data: string;
let env: NodeJS.ProcessEnv;

beforeEach(() => {
  data = testData();
  // Named, so that a daemon that happens to listen on the usual port is not asked.
  env = { FORKD_DATA: data, FORKD_SOCKET: `${data}/forkd.sock` };
});
afterEach(async () => {
  for (const pid of daemons()) process.kill(pid, 'SIGTERM');
  await expect.poll(daemons, { timeout: 30_000 }).toEqual([]);
  rmSync(data, { recursive: true });
});

function daemons(): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        const line = readFileSync(`/proc/${pid}/cmdline`, 'utf8');
        return line.includes('daemon/dist/main.js') && line.includes(data);
      } catch {
        return false;
      }
    })
    .map(Number);
}

it('a daemon is started when none runs; of several at once one stays, and it outlives its starters', async () => {
  const lists = await Promise.all([1, 2, 3].map(() => forkd(['ls', '--json'], { env })));
  for (const { code, stdout } of lists) expect([code, stdout]).toEqual([0, '[]\n']);
  expect(lists.some(({ stderr }) => stderr.includes('starting a daemon'))).toBe(true);
  expect(daemons()).toHaveLength(1);
  expect(await forkd(['version'], { env })).toMatchObject({ stdout: expect.stringContaining('API v1'), stderr: '' });
  expect((await forkd(['logs'], { env })).stdout).toContain('listening');
});

it('stop ends it, and says so when there is none', async () => {
  expect((await forkd(['ls'], { env })).code).toBe(0);
  const [pid] = daemons();
  expect(JSON.parse((await forkd(['stop', '--json'], { env })).stdout)).toEqual({ stopped: true, pid });
  expect(daemons()).toEqual([]);
  expect(JSON.parse((await forkd(['stop', '--json'], { env })).stdout)).toEqual({ stopped: false, pid: null });
});

it('one that was killed is replaced by the next command', async () => {
  expect((await forkd(['ls'], { env })).code).toBe(0);
  for (const pid of daemons()) process.kill(pid, 'SIGKILL');
  await expect.poll(daemons).toEqual([]);
  expect((await forkd(['cleanup'], { env })).stdout).toMatch(/^socket .*forkd.sock +nobody listens there +no$/m);
  expect((await forkd(['ls'], { env })).code).toBe(0);
  expect(daemons()).toHaveLength(1);
});

it('verbs that only look do not start one', async () => {
  for (const args of [['version'], ['where'], ['cleanup'], ['completion', '--list', 'tags']])
    expect((await forkd(args, { env })).code).toBe(0);
  expect(daemons()).toEqual([]);
});

it('a daemon that cannot start says why', async () => {
  const { code, stderr } = await forkd(['ls'], { env: { ...env, FORKD_STATE: `${data}/state.json` } });
  expect([code, stderr]).toEqual([
    7,
    expect.stringMatching(/error: the daemon could not start: --state.*\nhint: The state/),
  ]);
});

it('a user who is not root is told how to get one', async () => {
  const child = startForkd(['ls'], env, { uid: 65_534, gid: 65_534 });
  expect(await finished(child)).toMatchObject({ code: 6, stderr: expect.stringContaining('sudo forkd serve') });
});

it('serve runs the daemon in the foreground with its own flags, until stopped', async () => {
  expect((await forkd(['serve', '--help'], { env })).stdout).toContain('--bind');
  expect((await forkd(['serve', '--bind', 'nonsense'], { env })).stderr).toContain('error: cannot bind');
  const child = startForkd(['serve', '--data', data, '--socket', `${data}/forkd.sock`, '--bind', 'none'], env);
  const ran = finished(child);
  await expect.poll(async () => (await forkd(['version'], { env })).stdout, { timeout: 60_000 }).toContain('API v1');
  child.kill('SIGTERM');
  expect((await ran).code).toBe(143);
  expect(daemons()).toEqual([]);
});

it('what listens on the socket and is no daemon is not taken for one', async () => {
  writeFileSync(`${data}/forkd.sock`, '');
  expect(await forkd(['version'], { env })).toMatchObject({ stdout: expect.stringContaining('does not answer') });
});

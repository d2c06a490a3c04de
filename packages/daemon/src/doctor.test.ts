import { type ChildProcess, execFile, execFileSync, spawn } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { hierarchies, SqliteStore } from '@forkd/controller';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { tryLimit } from './doctor/cgroups.js';
import { type Check, type Host, pass, runCheck } from './doctor/check.js';
import { CHECKS } from './doctor/checks.js';
import { firecrackerVersion } from './doctor/engines.js';
import { overcommit } from './doctor/memory.js';
import { nodeVersion } from './doctor/platform.js';
import { asTable, report } from './doctor/report.js';

const DIST = fileURLToPath(new URL('../dist', import.meta.url));
const IMAGES = resolve(process.env.FORKD_DATA ?? fileURLToPath(new URL('../../../.forkd', import.meta.url)), 'images');
const TOKEN = 'a-token-that-is-long-enough';

const root = mkdtempSync(`${tmpdir()}/forkd-doctor-test-`);
const mounts: string[] = [];
afterAll(() => {
  for (const path of mounts) execFileSync('umount', [path]);
  rmSync(root, { recursive: true });
});

const Result = z.strictObject({
  name: z.string(),
  status: z.enum(['pass', 'warn', 'fail', 'skip']),
  detail: z.string().min(1),
  hint: z.string().min(1).nullable(),
});
const Report = z.strictObject({
  checks: z.array(Result),
  pass: z.number(),
  warn: z.number(),
  fail: z.number(),
  skip: z.number(),
});

interface Run {
  code: number;
  stdout: string;
  stderr: string;
}

function doctor(args: string[], env: Record<string, string> = {}, through: string[] = []): Promise<Run> {
  const [program, ...rest] = [...through, process.execPath, `${DIST}/doctor.js`, ...args];
  const { FORKD_TOKEN: _, FORKD_URL: __, FORKD_SOCKET: ___, ...inherited } = process.env;
  return new Promise((done) => {
    execFile(program!, rest, { env: { ...inherited, ...env } }, (error, stdout, stderr) =>
      done({ code: error ? Number(error.code) : 0, stdout, stderr }),
    );
  });
}

/** The results by name; nobody listens where the daemon is looked for, unless the test says otherwise. */
async function examine(args: string[], env: Record<string, string> = {}, through: string[] = []) {
  const { code, stdout } = await doctor(['--json', ...args], { FORKD_URL: 'http://127.0.0.1:1', ...env }, through);
  const { checks, ...counts } = Report.parse(JSON.parse(stdout));
  expect(checks.map(({ name }) => name)).toEqual(CHECKS.map(({ name }) => name));
  expect(code).toBe(counts.fail > 0 ? 1 : 0);
  for (const { status } of checks) counts[status]--;
  expect(counts).toEqual({ pass: 0, warn: 0, fail: 0, skip: 0 });
  for (const { name, status, hint } of checks) expect([name, hint === null]).toEqual([name, status === 'pass']);
  return Object.fromEntries(checks.map((check) => [check.name, check]));
}

function tmpfs(size: string): string {
  const path = mkdtempSync(`${root}/mount-`);
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${size},mode=700`, 'forkd-test', path]);
  mounts.push(path);
  return path;
}

describe('this host', () => {
  it('is examined in full, KVM by running a guest, and nothing is left behind', async () => {
    const data = mkdtempSync(`${root}/real-`);
    mkdirSync(IMAGES, { recursive: true });
    symlinkSync(IMAGES, `${data}/images`);
    const before = readdirSync(tmpdir()).filter((name) => name.startsWith('forkd-doctor-'));
    const seen = await examine(['--data', data]);
    for (const name of ['platform', 'user', 'node', 'native binaries', 'qemu', 'data directory', 'live branch'])
      expect(seen[name]).toMatchObject({ status: 'pass' });
    expect(seen.network).toMatchObject({ status: 'pass', detail: expect.stringMatching(/^tap: /) });
    expect(seen.engine!.detail).toMatch(/^qemu with (kvm|tcg) .*firecracker: passed over/);
    if (existsSync('/dev/kvm') && seen['kernel image']!.status === 'pass')
      expect(seen['kvm guest']!.detail).toMatch(/guest/);
    expect(readdirSync(data)).toEqual(['images']);
    const left = readdirSync(tmpdir()).filter((name) => name.startsWith('forkd-doctor-'));
    expect(left).toEqual(before);
  });

  it('without /dev/net/tun has a closed network, and the reason is said', async () => {
    const hidden = ['unshare', '-m', 'sh', '-c', 'mount -t tmpfs none /dev/net && exec "$0" "$@"'];
    const seen = await examine(['--data', `${root}/absent`], {}, hidden);
    expect(seen.network).toMatchObject({ status: 'warn', detail: expect.stringMatching(/^user: .*\/dev\/net\/tun/) });
    expect(seen.tun).toMatchObject({ status: 'warn' });
  });

  it('is shown to people as a table with hints', async () => {
    const { stdout, code } = await doctor(['--data', `${root}/absent`, '--daemon-url', 'http://127.0.0.1:1']);
    expect(stdout).toMatch(/! data directory +\S+ does not exist yet\n +→ /);
    expect(stdout).toMatch(/pass=\d+ warn=\d+ fail=\d+ skip=\d+\n$/);
    expect(stdout).not.toContain('\x1b');
    expect(code).toBe(/fail=0/.test(stdout) ? 0 : 1);
  });

  it('is not examined for a flag that does not exist', async () => {
    for (const args of [['--colour'], ['--daemon-url', 'ftp://x'], ['--daemon-url', 'nonsense'], ['extra']]) {
      const { code, stdout, stderr } = await doctor(args);
      expect([args, code, stdout]).toEqual([args, 2, '']);
      expect(stderr).toMatch(/^error: .*\nhint: Known: --json/);
    }
  });
});

describe('a data directory', () => {
  it('that is missing is not made, and the kernel that is not there is not downloaded', async () => {
    const seen = await examine(['--data', `${root}/absent/deeper`]);
    expect(seen['data directory']).toMatchObject({ status: 'warn' });
    expect(seen['kernel image']).toMatchObject({ status: 'warn', detail: 'the kernel image is not built yet' });
    expect(seen['kvm guest']).toMatchObject({ status: 'skip', hint: expect.stringContaining('forkd serve') });
    expect(existsSync(`${root}/absent`)).toBe(false);
  });

  it('that is a file, or below one, fails', async () => {
    writeFileSync(`${root}/file`, '');
    expect((await examine(['--data', `${root}/file`]))['data directory']).toMatchObject({ status: 'fail' });
    expect((await examine(['--data', `${root}/file/below`]))['data directory']).toMatchObject({ status: 'fail' });
  });

  it('that is read-only fails', async () => {
    const data = tmpfs('1m');
    execFileSync('mount', ['-o', 'remount,ro', data]);
    const seen = await examine(['--data', data]);
    expect(seen['data directory']).toMatchObject({ status: 'fail', hint: expect.stringContaining('remount') });
    expect(seen.reflink).toMatchObject({ status: 'skip' });
  });

  it('that belongs to somebody else fails', async ({ skip }) => {
    const nobody = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups'];
    const runs = await new Promise((done) => {
      execFile(nobody[0]!, [...nobody.slice(1), process.execPath, '--check', `${DIST}/doctor.js`], (e) => done(!e));
    });
    if (!runs) skip('another user cannot read this checkout');
    const data = mkdtempSync('/var/tmp/forkd-doctor-test-');
    try {
      const seen = await examine(['--data', data], {}, nobody);
      expect(seen.user).toMatchObject({ status: 'fail', hint: expect.stringContaining('sudo') });
      expect(seen['data directory']).toMatchObject({ status: 'fail', hint: expect.stringContaining('chown') });
    } finally {
      rmSync(data, { recursive: true });
    }
  });

  it('that is full fails', async () => {
    const data = tmpfs('64k');
    expect(() => writeFileSync(`${data}/ballast`, Buffer.alloc(128 << 10))).toThrow(/ENOSPC/);
    const seen = await examine(['--data', data]);
    expect(seen['data directory']).toMatchObject({ status: 'fail', detail: expect.stringContaining('full') });
    expect(seen['snapshot dir space']).toMatchObject({ status: 'fail' });
    expect(readdirSync(data)).toEqual(['ballast']);
  });

  it('whose path is too long for sockets fails', async () => {
    const data = `${root}/${'x'.repeat(80)}`;
    mkdirSync(data, { mode: 0o700 });
    const seen = await examine(['--data', data]);
    expect(seen['data directory']).toMatchObject({ status: 'pass' });
    expect(seen['socket paths']).toMatchObject({ status: 'fail', hint: expect.stringContaining('FORKD_DATA') });
  });

  it('that others can read is a warning', async () => {
    const data = `${root}/open`;
    mkdirSync(data, { mode: 0o755 });
    expect((await examine(['--data', data]))['data directory']).toMatchObject({ hint: `chmod 700 ${data}` });
  });

  it('with a database: it is read through, and a program that has it open does not notice', async () => {
    const data = mkdtempSync(`${root}/database-`);
    const store = new SqliteStore(`${data}/state.db`);
    store.addSnapshot({ tag: 'a', owner: 'ann', status: 'writing', created_at: 1, recipe: null, warning: null });
    const before = readdirSync(data).map((name) => [name, readFileSync(`${data}/${name}`)]);
    expect((await examine(['--data', data])).database).toMatchObject({ status: 'pass' });
    expect(readdirSync(data).map((name) => [name, readFileSync(`${data}/${name}`)])).toEqual(before);
    expect(store.moveSnapshot('a', 'ready').status).toBe('ready');
    store.close();
  });

  it('with a database that is none, or torn, fails with the way out', async () => {
    const data = mkdtempSync(`${root}/torn-`);
    writeFileSync(`${data}/state.db`, 'this is not a database'.repeat(100));
    expect((await examine(['--data', data])).database).toMatchObject({
      status: 'fail',
      hint: expect.stringContaining('move'),
    });
    const store = new SqliteStore(`${root}/whole.db`);
    store.close();
    const whole = readFileSync(`${root}/whole.db`);
    writeFileSync(`${data}/state.db`, whole.fill(0xa5, 100));
    const { database } = await examine(['--data', data]);
    expect(database).toMatchObject({ status: 'fail', detail: expect.stringContaining(`${data}/state.db`) });
  });
});

describe('the daemon', () => {
  let daemon: ChildProcess;
  let url: string;
  let data: string;

  beforeAll(async () => {
    data = mkdtempSync(`${root}/daemon-`);
    mkdirSync(IMAGES, { recursive: true });
    symlinkSync(IMAGES, `${data}/images`);
    writeFileSync(`${data}/token`, `${TOKEN}\n`);
    const args = ['--bind', '127.0.0.1:0', '--data', data, '--token-file', `${data}/token`];
    daemon = spawn(process.execPath, [`${DIST}/main.js`, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
    url = await new Promise((found, failed) => {
      daemon.once('exit', () => failed(new Error('the daemon ended')));
      daemon.stdout!.on('data', (chunk: Buffer) => {
        const address = /http:\/\/127\.0\.0\.1:\d+/.exec(chunk.toString());
        if (address) found(address[0]);
      });
    });
  });

  afterAll(async () => {
    const ended = new Promise((done) => daemon.once('exit', done));
    daemon.kill('SIGTERM');
    await ended;
  });

  const asked = async (env: Record<string, string>, args = ['--daemon-url', url]) =>
    (await examine(['--data', `${root}/absent`, ...args], env)).daemon;

  it('that answers is a pass', async () => {
    expect(await asked({ FORKD_TOKEN: TOKEN })).toMatchObject({ status: 'pass', detail: `answers at ${url}` });
  });

  it('is looked for on the socket of the data directory first, then on the usual port', async () => {
    const other = createServer((socket) => socket.end('HTTP/1.1 500 No\r\n\r\n')).listen(`${root}/forkd.sock`);
    const seen = await examine(['--data', root], { FORKD_URL: '' });
    expect(seen.daemon!.detail).toContain(`${root}/forkd.sock`);
    other.close();
    const absent = await examine(['--data', `${root}/absent`], { FORKD_URL: '' });
    expect(absent.daemon!.detail).toContain('127.0.0.1:8889');
  });

  it('that has the data directory is seen there', async () => {
    // Without its images: then there is no guest to wait for.
    const view = mkdtempSync(`${root}/view-`);
    symlinkSync(`${data}/run`, `${view}/run`);
    expect((await examine(['--data', view]))['data directory']!.detail).toMatch(/a daemon has it$/);
  });

  it('that refuses the token is a failure which names FORKD_TOKEN', async () => {
    for (const env of [{}, { FORKD_TOKEN: 'a-token-of-another-daemon' }])
      expect(await asked(env)).toMatchObject({ status: 'fail', hint: expect.stringContaining('FORKD_TOKEN') });
  });

  it('that is not there, or is something else, or never answers, is a warning', async () => {
    expect(await asked({}, ['--socket', `${root}/nobody.sock`])).toMatchObject({ status: 'warn' });
    const silent = createServer().listen(`${root}/silent.sock`);
    expect(await asked({}, ['--socket', `${root}/silent.sock`])).toMatchObject({
      status: 'warn',
      detail: expect.stringContaining('no answer within 2 s'),
    });
    silent.close();
    const other = createServer((socket) => socket.end('HTTP/1.1 500 No\r\n\r\n')).listen(`${root}/other.sock`);
    expect(await asked({}, ['--socket', `${root}/other.sock`])).toMatchObject({ status: 'warn' });
    other.close();
  });
});

describe('a check', () => {
  const host = {} as Host;
  const stuck: Check = { name: 'stuck', seconds: 0.05, run: () => new Promise(() => {}) };
  const broken: Check = {
    name: 'broken',
    run: () => {
      throw new Error('bang');
    },
  };

  it('that hangs or throws is a failure with a hint, in time', async () => {
    expect(await runCheck(stuck, host)).toMatchObject({ status: 'fail', detail: 'no answer within 0.05 s' });
    expect(await runCheck(broken, host)).toMatchObject({ status: 'fail', detail: 'bang' });
  });

  it('that is given up is told so', async () => {
    let aborted = false;
    const listening: Check = {
      ...stuck,
      run: ({ signal }) =>
        new Promise(() => {
          signal.addEventListener('abort', () => {
            aborted = true;
          });
        }),
    };
    await runCheck(listening, host);
    expect(aborted).toBe(true);
  });

  it('has a name of its own', () => {
    expect(new Set(CHECKS.map(({ name }) => name)).size).toBe(CHECKS.length);
  });

  it('shows colours only where they are wanted', async () => {
    const results = report([{ name: 'a', ...pass('fine') }, await runCheck(broken, host)]);
    expect(asTable(results, false)).toContain('✗ broken  bang\n          → ');
    expect(asTable(results, true)).toContain('\x1b[31m✗');
  });

  it('knows versions and modes that do not do', () => {
    expect(nodeVersion('20.18.9').status).toBe('fail');
    expect(nodeVersion('20.19.0').status).toBe('pass');
    expect(nodeVersion('22.0.0').status).toBe('pass');
    expect(overcommit('2').status).toBe('warn');
    expect(firecrackerVersion({ ok: true, output: 'Firecracker v1.13.1' })).toEqual(pass('v1.13.1'));
  });
});

/** Bug class 20: limits that are documented, and silently do nothing. */
it('a cgroup controller that the kernel has but that is not enabled is not called usable', async ({ skip }) => {
  const v2 = hierarchies().find(({ version }) => version === 2);
  const enabled = v2 && readFileSync(`${v2.path}/cgroup.subtree_control`, 'utf8');
  const sleeping = v2?.controllers.find((name) => name !== '' && !enabled!.includes(name));
  if (!v2 || !sleeping) return skip('every controller of this host is enabled');
  expect(await tryLimit(v2, sleeping, `${sleeping}.max`, 'max')).toEqual({
    reason: `${sleeping} is there but not enabled`,
    hint: `echo +${sleeping} > ${v2.path}/cgroup.subtree_control`,
  });
  expect(readdirSync(v2.path).filter((name) => name.startsWith('forkd-doctor'))).toEqual([]);
});

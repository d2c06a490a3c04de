import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { processesNaming } from './processes-naming.js';
import { run } from './run.js';

let dir: string;

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'run-'));
});
afterEach(() => rm(dir, { recursive: true }));

/** Puts a script in the place of a tool. */
async function tool(name: string, script: string): Promise<string> {
  await writeFile(join(dir, name), `#!/bin/sh\n${script}\n`);
  await chmod(join(dir, name), 0o755);
  return `${dir}:${process.env.PATH}`;
}

it('returns what a tool prints', async () => {
  expect(await run('cp', ['--version'])).toMatch(/coreutils/);
});

it('keeps the end of a long complaint', async () => {
  const tools = await tool('xz', 'head -c 300000 /dev/zero | tr "\\0" x >&2; echo the reason >&2; exit 3');
  await expect(run('xz', [], { tools })).rejects.toSatisfy((error) => {
    expect(error).toMatchObject({ code: 'host_unfit', message: expect.stringMatching(/^xz exited with 3: x+/) });
    expect(error.message).toMatch(/the reason$/);
    expect(error.details.stderr.length).toBeLessThanOrEqual(64 * 1024);
    return true;
  });
});

it('recognises a full disk whatever tool meets it', async () => {
  const tools = await tool('xz', 'echo "xz: out: No space left on device" >&2; exit 1');
  await expect(run('xz', [], { tools })).rejects.toMatchObject({ code: 'disk_full' });
});

it('names a missing tool and its package', async () => {
  await expect(run('mkfs.ext4', [], { tools: dir })).rejects.toMatchObject({
    code: 'host_unfit',
    message: expect.stringContaining('mkfs.ext4'),
    hint: expect.stringContaining('e2fsprogs'),
  });
});

it('does not hand the settings of the daemon on', async () => {
  process.env.FORKD_SECRET = 'x';
  const tools = await tool('xz', 'env');
  expect(await run('xz', [], { tools })).not.toMatch(/FORKD_SECRET/);
  delete process.env.FORKD_SECRET;
});

it.each([false, true])('ends the whole tree on abort (sealed: %s)', async (sealed) => {
  const tools = await tool('xz', `(exec sh -c "sleep 60; : ${dir}") & touch ${dir}/started; wait`);
  const abort = new AbortController();
  const running = run('xz', [], { tools, sealed, signal: abort.signal });
  const settled = expect(running).rejects.toMatchObject({ code: 'cancelled' });
  await expect.poll(() => existsSync(join(dir, 'started'))).toBe(true);
  abort.abort();
  await settled;
  expect(await processesNaming(dir)).toEqual([]);
});

it('ends a sealed tree when its builder is killed', async () => {
  const tools = await tool('xz', `(exec sh -c "sleep 60; : ${dir}") & touch ${dir}/started; wait`);
  const code = `import { run } from ${JSON.stringify(join(import.meta.dirname, '../dist/run.js'))};
    await run('xz', [], { tools: ${JSON.stringify(tools)}, sealed: true });`;
  const builder = spawn(process.execPath, ['--input-type=module', '-e', code], { stdio: 'inherit' });
  await expect.poll(() => existsSync(join(dir, 'started')), { timeout: 10_000 }).toBe(true);
  builder.kill('SIGKILL');
  await expect.poll(() => processesNaming(dir)).toEqual([]);
}, 20_000);

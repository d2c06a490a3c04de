import { mkdirSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Controller } from './controller.js';
import type { Sandbox } from './sandbox.js';
import type { SpawnResult } from './spawn-options.js';
import { close, dataDirectory, openController, recipe, running } from './testing.js';

const root = dataDirectory();
let controller: Awaited<ReturnType<typeof openController>>;

beforeAll(async () => {
  controller = await openController(root);
  await controller.createSnapshot({ tag: 'numpy', recipe: await recipe(), recipeName: 'python-numpy' });
});
afterAll(() => close(controller));

function sandboxes(results: SpawnResult[]): Sandbox[] {
  return results.map((result) => {
    if (!result.ok) throw result.error;
    return result.sandbox;
  });
}

async function withChildren(n: number, use: (children: Sandbox[]) => Promise<void>): Promise<void> {
  const children = sandboxes(await controller.spawn({ tag: 'numpy', n }));
  try {
    await use(children);
  } finally {
    await Promise.all(children.map((child) => child.kill()));
  }
}

async function python({ guest }: Sandbox, code: string): Promise<string | null> {
  const { result, error } = await guest.eval({ language: 'python', code });
  if (error) throw new Error(error.traceback);
  return result;
}

async function shell({ guest }: Sandbox, command: string): Promise<string> {
  return (await guest.exec({ command })).stdout.toString().trim();
}

describe('spawn', () => {
  it('children answer from the warmed interpreter', () =>
    withChildren(4, async (children) => {
      for (const child of children)
        expect(await python(child, 'numpy.zeros(5).tolist()')).toBe('[0.0, 0.0, 0.0, 0.0, 0.0]');
    }));

  it('children do not see what the others write, in memory or on disk', () =>
    withChildren(4, async (children) => {
      await Promise.all(children.map((child) => child.guest.files.write('/root/mine', child.id)));
      await Promise.all(children.map((child) => python(child, `mine = ${JSON.stringify(child.id)}`)));
      for (const child of children) {
        expect((await child.guest.files.read('/root/mine')).toString()).toBe(child.id);
        expect(await python(child, 'mine')).toBe(`'${child.id}'`);
      }
      await withChildren(1, async ([late]) => {
        expect(await late!.guest.files.exists('/root/mine')).toBe(false);
        expect(await python(late!, "'mine' in globals()")).toBe('False');
      });
    }));

  it('the VMM of each is jailed, as a user of its own, and can write to no file that is not its own', () =>
    withChildren(4, async (children) => {
      const users = children.map(({ vm, directory }) => {
        const status = readFileSync(`/proc/${vm.pid}/status`, 'utf8');
        expect(status).toMatch(/^CapPrm:\t0+\nCapEff:\t0+\nCapBnd:\t0+\n/m);
        expect(status).toMatch(/^NoNewPrivs:\t1\nSeccomp:\t2\n/m);
        for (const fd of readdirSync(`/proc/${vm.pid}/fd`)) {
          const path = readlinkSync(`/proc/${vm.pid}/fd/${fd}`);
          const flags = /^flags:\t(\d+)/m.exec(readFileSync(`/proc/${vm.pid}/fdinfo/${fd}`, 'utf8'))![1]!;
          const readOnly = (Number.parseInt(flags, 8) & 3) === 0;
          const own = new RegExp(`^(${directory}/(upper.img|vmm.log)|/dev/net/tun)$`);
          if (path.startsWith('/') && !readOnly) expect(path).toMatch(own);
        }
        return /^Uid:\t(\d+)\t\1\t\1\t\1$/m.exec(status)![1]!;
      });
      expect(new Set(users).size).toBe(4);
      expect(users).not.toContain('0');
    }));

  it('no two children share an identity, a random stream or a clock that is off', () =>
    withChildren(8, async (children) => {
      const facts = [
        (child: Sandbox) => python(child, "__import__('random').random()"),
        (child: Sandbox) => python(child, 'numpy.random.random()'),
        (child: Sandbox) => python(child, "__import__('os').urandom(8).hex()"),
        (child: Sandbox) => python(child, "__import__('uuid').uuid4().hex"),
        (child: Sandbox) => shell(child, 'cat /etc/machine-id'),
        (child: Sandbox) => shell(child, 'cat /proc/sys/kernel/random/boot_id'),
        (child: Sandbox) => shell(child, 'hostname'),
      ];
      for (const fact of facts) expect(new Set(await Promise.all(children.map(fact))).size).toBe(children.length);
      for (const child of children) {
        expect(await shell(child, 'hostname')).toBe(child.id);
        const identity = JSON.parse((await child.guest.files.read('/run/forkd/identity.json')).toString());
        expect(identity).toMatchObject({ id: child.id, parent: 'numpy', count: 8 });
        const before = Date.now();
        const clock = Number(await python(child, "__import__('time').time()")) * 1000;
        expect(clock).toBeGreaterThan(before - 100);
        expect(clock).toBeLessThan(Date.now() + 100);
      }
    }));

  it('the environment given to spawn reaches commands and evals', async () => {
    const [child] = sandboxes(await controller.spawn({ tag: 'numpy', n: 1, env: { GREETING: 'hello' } }));
    expect(await shell(child!, 'echo $GREETING')).toBe('hello');
    expect(await python(child!, "__import__('os').environ['GREETING']")).toBe("'hello'");
    await child!.kill();
  });

  it('a VMM that is killed while others start costs only its own child', async () => {
    const settled = controller.spawn({
      tag: 'numpy',
      n: 8,
      onReady: ({ vm }, index) => {
        if (index === 2) process.kill(vm.pid, 'SIGKILL');
      },
    });
    const results = await settled;
    expect(results.filter(({ ok }) => ok).length).toBe(8);
    const victim = sandboxes(results)[2]!;
    await victim.exited;
    await expect(victim.guest.health()).rejects.toMatchObject({ code: 'vmm_exited' });
    await Promise.all(controller.sandboxes().map((sandbox) => sandbox.kill()));
    expect(running(controller)).toEqual([]);
  });

  it('a zygote that dies is replaced by the next spawn', async () => {
    const [first] = sandboxes(await controller.spawn({ tag: 'numpy', n: 3 }));
    expect(first).toBeDefined();
    for (const pid of zygotes(controller)) process.kill(pid, 'SIGKILL');
    const results = await controller.spawn({ tag: 'numpy', n: 3 });
    const again = results.some(({ ok }) => !ok) ? await controller.spawn({ tag: 'numpy', n: 3 }) : results;
    expect(again.every(({ ok }) => ok)).toBe(true);
    await Promise.all(controller.sandboxes().map((sandbox) => sandbox.kill()));
  });

  it('refuses counts and tags that make no sense', async () => {
    for (const n of [0, -1, 1.5, 1001, Number.NaN])
      await expect(controller.spawn({ tag: 'numpy', n })).rejects.toMatchObject({ code: 'invalid_request' });
    for (const tag of ['absent', '../numpy', 'numpy/../numpy', '', 'a\0b', 'x'.repeat(65)])
      await expect(controller.spawn({ tag, n: 1 })).rejects.toMatchObject({ code: 'snapshot_not_found' });
  });

  it('a cgroup is joined before the child runs', async () => {
    const cgroup = ['/sys/fs/cgroup/pids', '/sys/fs/cgroup'].map((base) => `${base}/forkd/test-${process.pid}`);
    const made = cgroup.find((path) => {
      try {
        mkdirSync(path, { recursive: true });
        writeFileSync(`${path}/pids.max`, '100');
        return true;
      } catch {
        return false;
      }
    });
    expect(made, 'no pids cgroup can be made on this host').toBeDefined();
    const [child] = sandboxes(await controller.spawn({ tag: 'numpy', n: 1, cgroups: [made!] }));
    const { readFileSync, rmdirSync } = await import('node:fs');
    expect(readFileSync(`${made}/cgroup.procs`, 'utf8')).toContain(`${child!.vm.pid}\n`);
    await child!.kill();
    rmdirSync(made!);
  });
});

describe('snapshots', () => {
  it('a tag is taken once, kept while in use, and gone when removed', async () => {
    const again = { tag: 'numpy', recipe: await recipe(), recipeName: 'python-numpy' };
    await expect(controller.createSnapshot(again)).rejects.toMatchObject({ code: 'tag_exists' });
    expect((await controller.snapshots()).map(({ tag }) => tag)).toEqual(['numpy']);
    await withChildren(1, () =>
      expect(controller.removeSnapshot('numpy')).rejects.toMatchObject({ code: 'state_conflict' }),
    );
  });

  it('hostile tags are refused before anything is written', async () => {
    for (const tag of ['../x', 'a/b', '.', '..', '', 'a b', 'x'.repeat(65), 'tab\t', 'nul\0', 'é'])
      await expect(
        controller.createSnapshot({ tag, recipe: await recipe(), recipeName: 'python-numpy' }),
      ).rejects.toMatchObject({ code: 'invalid_request' });
  });
});

describe('a guest that floods', () => {
  it('its console costs bounded memory', () =>
    withChildren(1, async ([child]) => {
      const before = process.memoryUsage().rss;
      const flood = child!.guest.exec({
        command: 'timeout 3 yes 0123456789012345678901234567890123456789 > /dev/console',
      });
      await flood;
      expect(child!.vm.console().length).toBeLessThanOrEqual(64 << 10);
      expect(process.memoryUsage().rss - before).toBeLessThan(100 << 20);
      expect(await python(child!, '1 + 1')).toBe('2');
    }));

  it('its replies cost bounded memory', () =>
    withChildren(1, async ([child]) => {
      const before = process.memoryUsage().rss;
      const { truncated, stdout } = await child!.guest.exec({ command: 'timeout 3 yes', timeoutMs: 30_000 });
      expect(truncated).toBe(true);
      expect(stdout.length).toBeLessThanOrEqual(8 << 20);
      expect(process.memoryUsage().rss - before).toBeLessThan(200 << 20);
    }));
});

function zygotes(of: Controller): number[] {
  const { readdirSync, readFileSync } = process.getBuiltinModule('node:fs');
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(`${of.data.own}/zygote-`);
      } catch {
        return false;
      }
    })
    .filter((pid) => !of.sandboxes().some(({ vm }) => vm.pid === pid));
}

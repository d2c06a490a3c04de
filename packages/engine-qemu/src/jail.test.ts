import { execFileSync } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { fileURLToPath } from 'node:url';
import type { Vm } from '@forkd/engine';
import { buildCounter } from '@forkd/engine/guest-counter';
import { HostHelper } from '@forkd/host';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { JAIL_UIDS, qemuFiles } from './jail.js';
import { QemuEngine } from './qemu-engine.js';

/** What an attempt of the probe came to: `on` something it had a `result`, or there was a `count` to it. */
interface Attempt {
  attempt: string;
  on?: string;
  result?: string;
  count?: number;
}

const PROBE = fileURLToPath(new URL('../payload/probe.c', import.meta.url));
const root = mkdtempSync(`${tmpdir()}/forkd-jail-`);
const machine = { vcpus: 1, memoryMib: 64, accel: 'tcg' as const };
const helper = HostHelper.start();
const servers: Server[] = [];
let callers = 0;
let victim: Vm;
let zygote: Vm;
let copy: Vm;

function place(name: string): string {
  mkdirSync(`${root}/${name}`);
  writeFileSync(`${root}/${name}/disk.img`, Buffer.alloc(1 << 20), { mode: 0o600 });
  return `${root}/${name}`;
}

async function listening(on: string | number): Promise<Server> {
  const server = createServer(() => callers++);
  servers.push(server);
  await new Promise<void>((done) => server.listen(on, done));
  return server;
}

function spec(directory: string) {
  const disks = [{ path: `${directory}/disk.img`, readOnly: false }];
  const saved = { memory: `${root}/memory.img`, state: `${root}/device.state` };
  return { machine, disks, directory, tied: true, running: true, ...saved };
}

async function attempts(directory: string): Promise<Attempt[]> {
  for (const deadline = Date.now() + 20_000; ; ) {
    const lines = readFileSync(`${directory}/vmm.log`, 'utf8').trim().split('\n');
    if (lines.at(-1)?.includes('"end"')) return lines.map((line) => JSON.parse(line));
    if (Date.now() > deadline) throw new Error(`the probe did not come to an end:\n${lines.join('\n')}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Compiles the probe with what there is to be reached, and runs it as the VMM of a restored VM, and as a copy of that. */
beforeAll(async () => {
  writeFileSync(`${root}/memory.img`, Buffer.alloc(machine.memoryMib << 20));
  writeFileSync(`${root}/device.state`, 'state');
  writeFileSync(`${root}/strange`, 'a secret');
  const other = place('victim');
  // A real one, jailed as all are.
  victim = await new QemuEngine({ helper }).boot({
    ...spec(other),
    kernel: buildCounter(root),
    memory: `${other}/memory.img`,
  });
  const abstract = `forkd-jail-${process.pid}`;
  await listening(`${root}/daemon.sock`);
  await listening(`\0${abstract}`);
  const tcp = await listening(0);
  const targets = {
    VICTIM_DISK: `${other}/disk.img`,
    VICTIM_DIRECTORY: other,
    VICTIM_PID: victim.pid,
    STRANGE_FILE: `${root}/strange`,
    STRANGE_SOCKET: `${root}/daemon.sock`,
    ABSTRACT_SOCKET: abstract,
    TCP_PORT: (tcp.address() as { port: number }).port,
    HELPER_PID: helper.pid,
    CALLER_PID: process.pid,
    COPY_DISK: `${root}/copy/disk.img`,
  };
  const defines = Object.entries(targets).map(([name, value]) => `#define ${name} ${JSON.stringify(value)}\n`);
  writeFileSync(`${root}/targets.h`, defines.join(''));
  execFileSync('cc', [
    '-O1',
    '-Wall',
    '-Wno-nonnull',
    `-I${root}`,
    PROBE,
    '-o',
    `${root}/qemu-system-probe`,
    '-pthread',
  ]);
  const engine = new QemuEngine({ helper, binary: `${root}/qemu-system-probe` });
  zygote = await engine.restore(spec(place('zygote')));
  await attempts(`${root}/zygote`);
  copy = await zygote.fork!({ directory: place('copy'), tied: true });
});
afterAll(async () => {
  await helper[Symbol.asyncDispose]();
  for (const server of servers) server.close();
  rmSync(root, { recursive: true, force: true });
});

it('told to do without, VMMs run as root, and are forked as such', async () => {
  const engine = new QemuEngine({ helper, jail: 'none' });
  const directory = place('parent');
  const parent = await engine.boot({
    ...spec(directory),
    kernel: `${root}/counter.elf`,
    memory: `${directory}/memory.img`,
  });
  await parent.pause();
  await parent.save(`${directory}/device.state`);
  await parent.stop();
  const saved = { memory: `${directory}/memory.img`, state: `${directory}/device.state` };
  const vm = await engine.restore({ ...spec(place('unjailed')), ...saved, running: false });
  const forked = await vm.fork!({ directory: place('unjailed-copy'), tied: true });
  for (const { pid } of [vm, forked])
    expect(readFileSync(`/proc/${pid}/status`, 'utf8')).toMatch(/^Uid:\t0\t[\s\S]*^Seccomp:\t0$/m);
  await Promise.all([vm.stop(), forked.stop()]);
});

for (const way of ['zygote', 'copy'] as const)
  describe(way === 'copy' ? 'a VMM that was forked' : 'a VMM that was started', () => {
    const vm = (): Vm => (way === 'copy' ? copy : zygote);
    const of = async (...names: string[]): Promise<Attempt[]> => {
      const all = await attempts(`${root}/${way}`);
      const found = all.filter(({ attempt }) => names.includes(attempt));
      expect(new Set(found.map(({ attempt }) => attempt))).toEqual(new Set(names));
      return found;
    };
    const refused = async (...names: string[]): Promise<void> => {
      for (const { attempt, on, result } of await of(...names))
        expect(`${attempt} ${on}: ${result}`).toMatch(/: (EPERM|EACCES|ENOENT|EROFS|ENOSYS|EFBIG|ENOMEM|ENOTDIR)$/);
    };

    it('reads no file of another sandbox, or of the host', () => refused('read', 'execute'));

    it('sees its own files and nothing else', async () => {
      const { files } = await qemuFiles(`${root}/qemu-system-probe`);
      const own = { zygote: ['disk.img', 'vmm.state'], copy: ['disk.img', 'vmm.state', 'vmm.log', 'qmp.sock'] }[way];
      const given = own.map((name) => `${root}/${way}/${name}`);
      if (way === 'zygote') given.push(...files, `${root}/memory.img`, '/dev/null', '/dev/urandom');
      if (way === 'copy') given.push(`${root}/copy/agent.sock`, `${root}/copy/console.sock`);
      const above = given.flatMap((path) => path.split('/').map((_, depth, parts) => parts.slice(0, depth).join('/')));
      const expected = new Set([...given, ...above.map((path) => path || '/'), '/proc']);
      const seen = (await of('see')).map(({ on }) => on!);
      expect(new Set(seen)).toEqual(expected);
    });

    it('writes nothing but its own disk: not the memory that all share, and no new file', () =>
      refused('write', 'create', 'make a directory', 'make a device', 'remove', 'link'));

    it('reaches no socket and no network', async () => {
      await refused('connect', 'socket', 'socketpair');
      expect(callers).toBe(0);
    });

    it('neither signals nor traces anybody, nor reads their memory', async () => {
      await refused('signal', 'ptrace', 'read the memory of', 'pidfd_open', 'see the limits of', 'slow down');
      expect(existsSync(`/proc/${victim.pid}`)).toBe(true);
    });

    it('gets no privileges', () =>
      refused(
        ...['setuid', 'setresuid', 'setgroups', 'unshare', 'mount', 'remount', 'umount', 'chroot', 'setns', 'capset'],
        ...['sethostname', 'bpf', 'io_uring', 'userfaultfd', 'perf', 'keyctl', 'open_by_handle_at', '32-bit number'],
        ...['rename itself', 'clone'],
      ));

    it('exhausts neither processes, memory, disk nor descriptors', async () => {
      await refused('fork', 'memfd', 'grow', 'raise a limit');
      const counts = Object.fromEntries(
        (await of('threads', 'memory', 'descriptors')).map((a) => [a.attempt, a.count]),
      );
      expect(counts.threads).toBeLessThanOrEqual(128);
      expect(counts.memory).toBeLessThanOrEqual(machine.memoryMib + 4096);
      expect(counts.descriptors).toBeLessThanOrEqual(256);
      expect(statSync(`${root}/${way}/disk.img`).size).toBe(1 << 20);
    });

    it('is a user of its own, without capabilities, in namespaces of its own', () => {
      const status = readFileSync(`/proc/${vm().pid}/status`, 'utf8');
      const field = (name: string): string => new RegExp(`^${name}:[ \\t]*(.*)$`, 'm').exec(status)![1]!;
      const uid = Number(field('Uid').split(/\s/)[0]);
      expect(field('Uid')).toBe(Array(4).fill(uid).join('\t'));
      expect(field('Gid')).toBe(field('Uid'));
      expect(field('Groups').trim()).toBe('');
      expect(uid).toBeGreaterThanOrEqual(JAIL_UIDS.first);
      expect(uid).toBeLessThanOrEqual(JAIL_UIDS.last);
      for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) expect(BigInt(`0x${field(set)}`)).toBe(0n);
      expect([field('NoNewPrivs'), field('Seccomp')]).toEqual(['1', '2']);
      const others = [process.pid, victim.pid, (way === 'copy' ? zygote : copy).pid];
      for (const kind of ['mnt', 'net', 'ipc', 'uts'])
        for (const pid of others)
          expect(readlinkSync(`/proc/${vm().pid}/ns/${kind}`)).not.toBe(readlinkSync(`/proc/${pid}/ns/${kind}`));
      expect(statSync(`${root}/${way}`)).toMatchObject({ uid, mode: expect.any(Number) });
      for (const pid of others) expect(readFileSync(`/proc/${pid}/status`, 'utf8')).not.toContain(`Uid:\t${uid}\t`);
    });
  });

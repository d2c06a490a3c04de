import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { fileURLToPath } from 'node:url';
import { Forkd, type Sandbox } from '@forkd/sdk';
import { startTestDaemon, type TestDaemon } from '@forkd/sdk/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { finished, forkd, type Ran, startForkd } from './testing.js';

const FORKD = fileURLToPath(new URL('../../../bin/forkd', import.meta.url));
const TERMINAL = fileURLToPath(new URL('./terminal.fixture.py', import.meta.url));
const folder = mkdtempSync(`${tmpdir()}/forkd-cp-`);
let daemon: TestDaemon;
let client: Forkd;
let sandbox: Sandbox;
let env: NodeJS.ProcessEnv;
let id: string;

beforeAll(async () => {
  daemon = await startTestDaemon();
  env = { FORKD_URL: daemon.url, FORKD_TOKEN: daemon.token };
  client = new Forkd(daemon);
  await client.snapshots.create({ tag: 'warm', recipe: 'python-numpy' });
  sandbox = (await client.sandboxes.spawn({ snapshot_tag: 'warm' }))[0]!;
  id = sandbox.id;
});
afterAll(async () => {
  client?.close();
  await daemon?.stop();
  rmSync(folder, { recursive: true });
});

function ask(...args: string[]): Promise<Ran> {
  return forkd(args, { env });
}

describe('output as it comes', () => {
  it('a line is there before the program ends', async () => {
    const child = startForkd(['exec', id, '--no-stdin', '--', 'sh', '-c', 'echo first; sleep 60'], env);
    const first = await new Promise((resolve) =>
      child.stdout!.once('data', (data: Buffer) => resolve(data.toString())),
    );
    expect(first).toBe('first\n');
    const ran = finished(child);
    child.kill('SIGINT');
    expect((await ran).code).toBe(130);
  });

  it('bytes that are not text pass unchanged', async () => {
    const pieces: Uint8Array[] = [];
    for await (const event of sandbox.execStream(['printf', '\\377\\000\\303']))
      if (event.type === 'stdout') pieces.push(event.data);
    expect(Buffer.concat(pieces)).toEqual(Buffer.from([0xff, 0, 0xc3]));
  });
});

describe('files', () => {
  it('the SDK reads, writes, lists, moves, watches and removes', async () => {
    const { files } = sandbox;
    const watched = await files.watch('/root');
    await files.write('/root/in/a.txt', 'content');
    for await (const { name } of watched) {
      expect(name).toContain('in');
      break;
    }
    expect(await text(await files.read('/root/in/a.txt'))).toBe('content');
    expect(await files.stat('/root/in/a.txt')).toMatchObject({ name: 'a.txt', type: 'file', size: 7 });
    await files.makeFolder('/root/in/deep');
    await files.move('/root/in/a.txt', '/root/in/deep/b.txt');
    expect((await files.list('/root/in', { depth: 2 })).map(({ name }) => name).sort()).toEqual(['b.txt', 'deep']);
    await files.remove('/root/in');
    await expect(files.stat('/root/in')).rejects.toMatchObject({ code: 'file_not_found' });
  });

  it('cp copies folders there and back, skipping links', async () => {
    mkdirSync(`${folder}/there/deep`, { recursive: true });
    writeFileSync(`${folder}/there/a`, 'a'.repeat(3 << 20));
    writeFileSync(`${folder}/there/deep/b`, Buffer.from([0, 255]));
    symlinkSync('/etc/passwd', `${folder}/there/link`);
    const up = await ask('cp', `${folder}/there`, `${id}:/root/there`);
    expect(up).toMatchObject({
      code: 0,
      stdout: '2 files, 3.0 MiB\n',
      stderr: expect.stringContaining('symbolic link'),
    });
    await sandbox.exec(['ln', '-s', '/etc/passwd', '/root/there/deep/out']);
    const down = await ask('cp', '--json', `${id}:/root/there`, `${folder}/back`);
    expect([down.code, JSON.parse(down.stdout)]).toEqual([0, { files: 2, bytes: (3 << 20) + 2, skipped: 1 }]);
    expect(readFileSync(`${folder}/back/a`).equals(readFileSync(`${folder}/there/a`))).toBe(true);
    expect(readFileSync(`${folder}/back/deep/b`)).toEqual(Buffer.from([0, 255]));
    // Into a folder that is there: below it.
    expect((await ask('cp', `${id}:/root/there/deep`, folder)).code).toBe(0);
    expect(readFileSync(`${folder}/deep/b`)).toEqual(Buffer.from([0, 255]));
  });

  it('cp never writes through a link on this host', async () => {
    writeFileSync(`${folder}/precious`, 'precious');
    symlinkSync(`${folder}/precious`, `${folder}/trap`);
    await sandbox.files.write('/root/x', 'changed');
    expect((await ask('cp', `${id}:/root/x`, `${folder}/trap`)).code).toBe(2);
    expect(readFileSync(`${folder}/precious`, 'utf8')).toBe('precious');
  });

  it('cp takes standard input and gives standard output', async () => {
    expect((await forkd(['cp', '-', `${id}:/root/typed`], { env, input: 'typed' })).code).toBe(0);
    expect(await ask('cp', `${id}:/root/typed`, '-')).toEqual({ code: 0, stdout: 'typed', stderr: '' });
    expect((await ask('cp', `${id}:/absent`, '-')).code).toBe(3);
    expect((await ask('cp', '/absent/here', `${id}:/root/y`)).code).toBe(3);
  });
});

describe('terminals', () => {
  it('the SDK opens one, and gives its output and exit code', async () => {
    const pty = await sandbox.pty({ command: 'stty size; exit 5', cols: 100, rows: 40 });
    let output = '';
    for await (const data of pty) output += Buffer.from(data).toString();
    expect(output).toContain('40 100');
    expect(await pty.exit).toMatchObject({ exit_code: 5 });
  });

  it('one in a sandbox that is not there is refused as any other call', async () => {
    await using gone = (await client.sandboxes.spawn({ snapshot_tag: 'warm' }))[0]!;
    await gone.kill();
    await expect(gone.pty()).rejects.toMatchObject({ code: 'sandbox_not_found' });
  });

  it('shell is a real terminal: size, Ctrl-C, exit code, and the terminal is as it was', () => {
    const ran = typeInto(
      ['shell', id],
      [
        ['# ', 'stty size\r'],
        ['30 90', ''],
        ['resize', 70, 20],
        ['# ', 'sleep 1; stty size\r'],
        // The program says itself that it is in the foreground: before that, Ctrl-C would be the shell's.
        ['20 70', "sh -c 'echo go$((1)); exec sleep 4713'\r"],
        ['go1', '\u0003'],
        ['# ', 'exit 3\r'],
      ],
    );
    expect(ran.left).toEqual([]);
    expect([ran.code, ran.raw]).toEqual([3, false]);
  });

  it('Enter ~ . leaves one that is stuck', () => {
    const ran = typeInto(['shell', id, '-c', 'trap "" INT; echo stuck; sleep 4714'], [['stuck', '\r~.']]);
    expect([ran.code, ran.raw]).toEqual([0, false]);
    expect(ran.output).toContain('left the terminal');
  });

  it('quickstart asks on a terminal, and no means no', async () => {
    const ran = typeInto(['quickstart'], [['[y/N] ', 'n\r']]);
    expect([ran.code, ran.left]).toEqual([130, []]);
    expect(ran.output).toContain('nothing was changed');
    expect((await client.snapshots.list()).map(({ tag }) => tag)).toEqual(['warm']);
  });

  it('quickstart ends in a shell when the answer is yes', () => {
    const steps = [
      ['[y/N] ', 'y\r'],
      [':~# ', 'exit 6\r'],
    ];
    expect(typeInto(['quickstart', '-n', '2'], steps)).toMatchObject({ code: 6, left: [], raw: false });
  });

  /** Types on a real terminal: waits for a text, then types another. */
  function typeInto(
    args: string[],
    steps: (string | number)[][],
  ): { code: number; raw: boolean; left: unknown[]; output: string } {
    const environment = { ...process.env, ...env, TERM: 'xterm' };
    const out = execFileSync('python3', [TERMINAL, JSON.stringify(steps), FORKD, ...args], {
      env: environment,
      timeout: 90_000,
    });
    return JSON.parse(out.toString());
  }
});

it('console shows what the guest printed at boot', async () => {
  expect((await ask('console', id)).code).toBe(0);
  expect(JSON.parse((await ask('console', id, '--json')).stdout)).toMatchObject({ id, console: expect.any(String) });
});

async function text(stream: AsyncIterable<Uint8Array>): Promise<string> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

describe('ports', () => {
  const SERVER = `import socket
server = socket.create_server(('127.0.0.1', 7000))
while True:
    peer, _ = server.accept()
    heard = b''
    while data := peer.recv(65536): heard += data
    peer.sendall(heard[::-1])
    peer.close()`;

  it('are listed, named, and reached from this host until Ctrl-C', async () => {
    await sandbox.files.write('/root/server.py', SERVER);
    await sandbox.exec(['sh', '-c', 'nohup python3 /root/server.py > /dev/null 2>&1 &']);
    await expect.poll(async () => (await sandbox.ports()).map(({ port }) => port)).toEqual([7000]);
    expect((await ask('ports', id)).stdout).toMatch(/7000 +127\.0\.0\.1 +\d+ +python3/);
    expect(sandbox.url(7000)).toBe(`http://7000-${id}.localhost:${new URL(daemon.url).port}/`);

    const child = startForkd(['port-forward', id, '0:7000', '--json'], env);
    const ran = finished(child);
    const said = await new Promise<string>((resolve) => child.stdout!.once('data', resolve));
    const [{ listen, port }] = JSON.parse(said) as [{ listen: string; port: number }];
    expect([listen, port]).toEqual([expect.stringMatching(/^127\.0\.0\.1:\d+$/), 7000]);
    for (const text of ['hello', 'x'.repeat(300_000)]) {
      const socket = connect({ host: '127.0.0.1', port: Number(listen.split(':')[1]), allowHalfOpen: true });
      socket.end(`${text}!`);
      expect(Buffer.concat(await socket.toArray()).toString()).toBe(`!${[...text].reverse().join('')}`);
    }
    child.kill('SIGINT');
    expect((await ran).code).toBe(130);
  });

  it('that nobody listens on are refused, and ports that are none', async () => {
    await expect(sandbox.connect(7001)).rejects.toMatchObject({ code: 'guest_error' });
    await expect(sandbox.connect(70_000)).rejects.toMatchObject({ code: 'invalid_request' });
    for (const bad of [['x'], ['1:2:3'], ['8080:0'], ['70000'], []])
      expect((await ask('port-forward', id, ...bad)).code).toBe(2);
  });
});

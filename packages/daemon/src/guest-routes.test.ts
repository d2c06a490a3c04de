import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream, readFileSync, writeFileSync } from 'node:fs';
import { type ClientRequest, type IncomingMessage, request } from 'node:http';
import { pipeline } from 'node:stream/promises';
import { ErrorBody, ExecEvent, FileInfo, PtyOutput, type SandboxInfo } from '@forkd/protocol';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { WebSocket } from 'ws';
import { TestDaemon, TOKEN } from './testing.js';

const NDJSON = { accept: 'application/x-ndjson' };
const BYTES = { 'content-type': 'application/octet-stream' };
let daemon: TestDaemon;
/** Paths of two sandboxes. */
let one: string;
let two: string;

beforeAll(async () => {
  daemon = await TestDaemon.secured();
  expect((await daemon.say('POST', '/v1/snapshots', { tag: 'numpy', recipe: 'python-numpy' })).status).toBe(201);
  const { body } = await daemon.say('POST', '/v1/sandboxes', { snapshot_tag: 'numpy', n: 2 });
  [one, two] = (body as SandboxInfo[]).map(({ id }) => `/v1/sandboxes/${id}`) as [string, string];
});
afterAll(() => daemon.stop());

const sh = async (sandbox: string, line: string): Promise<string> =>
  (await daemon.say('POST', `${sandbox}/exec`, { args: ['sh', '-c', line] })).body.stdout;

/** A request whose answer is read only as far as the test does. */
function open(method: string, path: string, headers: object = {}): ClientRequest {
  return request(daemon.url + path, { method, headers: { authorization: `Bearer ${TOKEN}`, ...headers } });
}

async function until(condition: () => Promise<boolean>, limitMs = 10_000): Promise<void> {
  for (const deadline = Date.now() + limitMs; !(await condition()); ) {
    if (Date.now() > deadline) throw new Error('the condition never held');
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function* execEvents(sandbox: string, body: object, signal?: AbortSignal) {
  const reply = await daemon.fetch('POST', `${sandbox}/exec`, body, NDJSON, signal);
  expect([reply.status, reply.headers.get('content-type')]).toEqual([200, 'application/x-ndjson']);
  let rest = '';
  for await (const chunk of reply.body!.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + chunk).split('\n');
    rest = lines.pop()!;
    for (const line of lines) yield ExecEvent.parse(JSON.parse(line));
  }
  expect(rest).toBe('');
}

describe('streamed exec', () => {
  it('arrives live, in order, and ends with the exit', async () => {
    const script = 'echo first; echo oops >&2; read line; echo "$line"; exit 3';
    const events = execEvents(one, { args: ['sh', '-c', `echo ready; sleep 1; ${script}`], stdin: 'typed\n' });
    const since = performance.now();
    expect((await events.next()).value).toEqual({ type: 'stdout', data: btoa('ready\n') });
    expect(performance.now() - since).toBeLessThan(900);
    const seen = { stdout: '', stderr: '' };
    let last: ExecEvent | undefined;
    for await (const event of events) {
      if ('data' in event) seen[event.type] += atob(event.data);
      last = event;
    }
    expect(seen).toEqual({ stdout: 'first\ntyped\n', stderr: 'oops\n' });
    expect(last).toEqual({ type: 'exit', exit_code: 3, signal: null, timed_out: false });
  });

  it('is the same as server-sent events', async () => {
    const sse = { accept: 'text/html, text/event-stream;q=0.9' };
    const { headers, body } = await daemon.say('POST', `${one}/exec`, { args: ['echo', 'x'] }, sse);
    expect(headers['content-type']).toBe('text/event-stream');
    const out = `event: stdout\ndata: {"type":"stdout","data":"${btoa('x\n')}"}\n\n`;
    const exit = 'event: exit\ndata: {"type":"exit","exit_code":0,"signal":null,"timed_out":false}\n\n';
    expect(body).toBe(out + exit);
  });

  it('answers before anything ran are ordinary errors', async () => {
    for (const [body, field] of [
      [{ args: ['/not/there'] }, 'cannot start'],
      [{ args: ['true'], user: 'nobody-here' }, 'nobody-here'],
      [{ args: ['true'], cwd: '/not/there' }, '/not/there'],
      // Bug class 11: an unbounded wait ties up the daemon.
      ...[0, -1, 1.5, 86_401, 1e15, Number.MAX_SAFE_INTEGER, '30', null].map((timeout_secs) => [
        { args: ['true'], timeout_secs },
        'body.timeout_secs',
      ]),
    ] as [object, string][])
      for (const accept of ['application/json', 'application/x-ndjson']) {
        const reply = await daemon.say('POST', `${one}/exec`, body, { accept });
        expect([body, reply.status, ErrorBody.parse(reply.body).error]).toEqual([
          body,
          400,
          expect.stringContaining(field),
        ]);
      }
  });

  it('ends what runs out of time, and says so', async () => {
    const events = [];
    for await (const event of execEvents(one, { args: ['sleep', '60'], timeout_secs: 1 })) events.push(event);
    expect(events).toEqual([{ type: 'exit', exit_code: 124, signal: 'SIGKILL', timed_out: true }]);
  });

  it('a client that goes takes its process along', async () => {
    const gone = new AbortController();
    const events = execEvents(one, { args: ['sh', '-c', 'echo $$; exec sleep 4242'] }, gone.signal);
    const { value } = await events.next();
    const pid = Number(atob((value as { data: string }).data));
    expect(await sh(one, `cat /proc/${pid}/cmdline`)).toContain('4242');
    gone.abort();
    await until(async () => !(await sh(one, `cat /proc/${pid}/cmdline`)).includes('4242'));
    const plain = new AbortController();
    const lost = daemon.fetch('POST', `${one}/exec`, { args: ['sleep', '4243'] }, {}, plain.signal).catch(() => {});
    const runs = async () => (await sh(one, 'cat /proc/[0-9]*/cmdline | tr "\\0" " "')).includes('sleep 4243');
    await until(runs);
    plain.abort();
    await lost;
    await until(async () => !(await runs()));
  });

  it('a client that does not read holds the process up; nothing piles up in the daemon', async () => {
    const count = 'i=0; while :; do head -c 65536 /dev/zero; i=$((i+1)); echo $i > /tmp/count; done';
    const body = JSON.stringify({ args: ['sh', '-c', count], timeout_secs: 600 });
    const stalled = open('POST', `${two}/exec`, { ...NDJSON, 'content-type': 'application/json' });
    stalled.on('error', () => {}).end(body);
    const [reply] = (await once(stalled, 'response')) as [IncomingMessage];
    reply.on('error', () => {});
    const before = daemon.rssMib();
    const sent = async () => Number(await sh(two, 'cat /tmp/count'));
    let last = -1;
    await until(async () => {
      const now = await sent();
      const stands = now === last;
      last = now;
      await new Promise((resolve) => setTimeout(resolve, 500));
      return stands && now > 0;
    }, 60_000);
    expect(await sent()).toBe(last);
    expect(daemon.rssMib() - before).toBeLessThan(64);
    // The same sandbox, over the same channel, is not held up.
    expect(await sh(two, 'echo fine')).toBe('fine\n');
    reply.destroy();
    await until(async () => !(await sh(two, 'cat /proc/[0-9]*/cmdline')).includes('/tmp/count'));
  });

  it('a guest that floods is cut short where the answer is one document', async () => {
    const flood = { args: ['sh', '-c', 'yes | head -c 30000000'] };
    const { body } = await daemon.say('POST', `${two}/exec`, flood);
    expect(body).toMatchObject({ truncated: true, exit_code: 0 });
    expect(body.stdout.length).toBeLessThanOrEqual(8 << 20);
    expect(daemon.rssMib()).toBeLessThan(400);
  });
});

class Terminal {
  output = Buffer.alloc(0);
  readonly messages: PtyOutput[] = [];
  readonly closed: Promise<number>;

  private constructor(readonly socket: WebSocket) {
    socket.on('message', (data: Buffer, isBinary) => {
      if (isBinary) this.output = Buffer.concat([this.output, data]);
      else this.messages.push(PtyOutput.parse(JSON.parse(data.toString())));
    });
    socket.on('error', () => {});
    this.closed = once(socket, 'close').then(([code]) => code as number);
  }

  static async open(query: string, sandbox = one): Promise<Terminal> {
    const headers = { authorization: `Bearer ${TOKEN}` };
    const socket = new WebSocket(`${daemon.url.replace('http', 'ws')}${sandbox}/pty?${query}`, { headers });
    const terminal = new Terminal(socket);
    await once(socket, 'open');
    return terminal;
  }

  type(text: string): void {
    this.socket.send(Buffer.from(text));
  }

  shows(text: string | RegExp): Promise<void> {
    const shown = () => this.output.toString().search(text) >= 0;
    return until(async () => shown()).catch(() => {
      throw new Error(`never showed ${text}: ${this.output}`);
    });
  }
}

describe('a terminal', () => {
  it('is a login shell with its size, Ctrl-C and exit code', async () => {
    const terminal = await Terminal.open('cols=91&rows=17&term=vt100');
    terminal.type('stty size; echo "[$TERM $0]"; tty\n');
    await terminal.shows('17 91');
    await terminal.shows(/\[vt100 .*sh\]/);
    await terminal.shows('/dev/pts/');
    terminal.socket.send(JSON.stringify({ type: 'resize', cols: 120, rows: 40 }));
    terminal.type('stty size\n');
    await terminal.shows('40 120');
    terminal.type('echo be; sleep 100; echo "af""ter $?"\n');
    await terminal.shows('be\r\n');
    terminal.type('\u0003');
    terminal.type('echo "ag""ain"; exit 7\n');
    await terminal.shows('again');
    expect(await terminal.closed).toBe(1000);
    expect(terminal.messages).toEqual([{ type: 'exit', exit_code: 7, signal: null }]);
  });

  it('loses nothing of a megabyte, also for a client that pauses', async () => {
    const line = `stty -opost; head -c 1048576 /dev/urandom > /tmp/random; cat /tmp/random`;
    const terminal = await Terminal.open(`command=${encodeURIComponent(line)}`);
    terminal.socket.pause();
    await new Promise((resolve) => setTimeout(resolve, 500));
    terminal.socket.resume();
    expect(await terminal.closed).toBe(1000);
    expect(terminal.output.length).toBe(1 << 20);
    const sum = createHash('sha256').update(terminal.output).digest('hex');
    expect(await sh(one, 'sha256sum /tmp/random')).toContain(sum);
  });

  it('takes a long paste whole', async () => {
    const terminal = await Terminal.open(
      `command=${encodeURIComponent('stty raw -echo; echo go; head -c 300000 | sha256sum')}`,
    );
    await terminal.shows('go');
    const paste = randomBytes(300_000);
    for (let at = 0; at < paste.length; at += 1000) terminal.socket.send(paste.subarray(at, at + 1000));
    expect(await terminal.closed).toBe(1000);
    expect(terminal.output.toString()).toContain(createHash('sha256').update(paste).digest('hex'));
  });

  it('hangs up when the client goes: first politely, then for good', async () => {
    const polite = await Terminal.open(
      `command=${encodeURIComponent('trap "echo hup > /tmp/hup; exit" HUP; echo up; while :; do sleep 0.1; done')}`,
    );
    await polite.shows('up');
    const deaf = await Terminal.open(`command=${encodeURIComponent('trap "" HUP; echo up; exec sleep 5151')}`);
    await deaf.shows('up');
    for (const { socket } of [polite, deaf]) socket.terminate();
    await until(async () => (await sh(one, 'cat /tmp/hup')) === 'hup\n');
    await until(async () => !(await sh(one, 'cat /proc/[0-9]*/cmdline')).includes('5151'));
  });

  it('holds a flood back while the client does not read', async () => {
    const flood = 'i=0; while :; do head -c 65536 /dev/zero; i=$((i+1)); echo $i > /tmp/pty-count; done';
    const terminal = await Terminal.open(`command=${encodeURIComponent(flood)}`, two);
    terminal.socket.pause();
    const before = daemon.rssMib();
    let last = '';
    await until(async () => {
      const now = await sh(two, 'cat /tmp/pty-count');
      const stands = now === last && now !== '';
      last = now;
      await new Promise((resolve) => setTimeout(resolve, 500));
      return stands;
    }, 60_000);
    expect(daemon.rssMib() - before).toBeLessThan(64);
    terminal.socket.terminate();
    await until(async () => !(await sh(two, 'cat /proc/[0-9]*/cmdline')).includes('pty-count'));
  });

  it.each([
    '{',
    '[]',
    '{"type":"resize"}',
    '{"type":"resize","cols":0,"rows":1}',
    '{"type":"resize","cols":1e9,"rows":1}',
    'x',
  ])('is closed by the text frame %j', async (frame) => {
    const terminal = await Terminal.open('command=cat');
    terminal.socket.send(frame);
    expect(await terminal.closed).toBe(1008);
  });

  it('is closed by a frame that is too large', async () => {
    const terminal = await Terminal.open('command=cat');
    terminal.socket.send(Buffer.alloc((1 << 20) + 1));
    expect(await terminal.closed).toBe(1009);
  });

  it('is refused like everything else, before the upgrade', async () => {
    const upgrade = {
      connection: 'Upgrade',
      upgrade: 'websocket',
      'sec-websocket-version': '13',
      'sec-websocket-key': 'AAAAAAAAAAAAAAAAAAAAAA==',
    };
    const ask = async (path: string, headers: object) => {
      const asked = open('GET', path, headers).end();
      const reply = await Promise.race([once(asked, 'response'), once(asked, 'upgrade')]);
      const [message] = reply as [IncomingMessage];
      let body = '';
      if (message.statusCode === 101) message.socket.destroy();
      else for await (const chunk of message) body += chunk;
      return [message.statusCode, body === '' ? '' : ErrorBody.parse(JSON.parse(body)).code];
    };
    expect(await ask(`${one}/pty`, upgrade)).toEqual([101, '']);
    expect(await ask(`${one}/pty`, {})).toEqual([400, 'invalid_request']);
    expect(await ask(`${one}/pty`, { ...upgrade, upgrade: 'h2c' })).toEqual([400, 'invalid_request']);
    expect(await ask(`${one}/pty`, { ...upgrade, 'sec-websocket-key': 'x' })).toEqual([400, 'invalid_request']);
    expect(await ask(`${one}/pty?cols=0`, upgrade)).toEqual([400, 'invalid_request']);
    expect(await ask(`${one}/pty?cwd=/not/there`, upgrade)).toEqual([400, 'invalid_request']);
    expect(await ask(`${one}/pty`, { ...upgrade, authorization: 'Bearer wrong' })).toEqual([401, 'unauthenticated']);
    const { host } = new URL(daemon.url);
    expect(await ask(`${one}/pty`, { ...upgrade, origin: `http://${host}` })).toEqual([101, '']);
    for (const origin of ['http://evil.example', 'null', `http://${host}.evil.example`, 'x'])
      expect(await ask(`${one}/pty`, { ...upgrade, origin })).toEqual([403, 'forbidden']);
    const absent = '/v1/sandboxes/sb-00000000000000000000/pty';
    expect(await ask(absent, upgrade)).toEqual([404, 'sandbox_not_found']);
    expect(await ask('/v1/nothing', upgrade)).toEqual([404, 'route_not_found']);
  });
});

describe('files', () => {
  const at = (path: string, sandbox = one): string => `${sandbox}/files?path=${encodeURIComponent(path)}`;

  it('fifty megabytes go in and out unchanged', async () => {
    const file = `${daemon.parent}/big`;
    const bytes = randomBytes(50 << 20);
    const sum = createHash('sha256').update(bytes).digest('hex');
    writeFileSync(file, bytes);
    const put = open('PUT', at('/root/deep/big'), BYTES);
    const answered = once(put, 'response') as Promise<[IncomingMessage]>;
    await pipeline(createReadStream(file), put);
    expect((await answered)[0].statusCode).toBe(204);
    const [reply] = (await once(open('GET', at('/root/deep/big')).end(), 'response')) as [IncomingMessage];
    expect(reply.headers).toMatchObject({
      'content-type': 'application/octet-stream',
      'content-length': String(50 << 20),
      'content-disposition': 'attachment',
      'x-content-type-options': 'nosniff',
      'cache-control': 'no-store',
    });
    const hash = createHash('sha256');
    for await (const chunk of reply) hash.update(chunk);
    expect(hash.digest('hex')).toBe(sum);
    expect(daemon.rssMib()).toBeLessThan(400);
    await daemon.say('DELETE', at('/root/deep'));
  });

  it('an upload that breaks off leaves what was there', async () => {
    await daemon.say('PUT', at('/root/kept'), 'old', BYTES);
    for (const name of ['kept', 'fresh']) {
      const put = open('PUT', at(`/root/${name}`), { ...BYTES, 'content-length': 1 << 20 });
      put.on('error', () => {}).write(Buffer.alloc(1000));
      await until(async () => (await sh(one, 'ls -A /root')).includes('.forkd-'));
      put.destroy();
      await until(async () => !(await sh(one, 'ls -A /root')).includes('.forkd-'));
    }
    expect(await sh(one, 'cat /root/kept; ls /root')).toBe('oldkept\n');
  });

  it('are made, moved, listed and removed', async () => {
    const call = daemon.say.bind(daemon);
    expect((await call('POST', `${one}/files/folder?path=/srv/a/b`)).status).toBe(201);
    const again = await call('POST', `${one}/files/folder?path=/srv/a/b`);
    expect([again.status, FileInfo.parse(again.body)]).toEqual([
      200,
      expect.objectContaining({ type: 'dir', name: 'b' }),
    ]);
    expect((await call('PUT', at('/srv/a/ünï %41&=\n'), 'x', BYTES)).status).toBe(204);
    expect((await call('PUT', at('/srv/a/empty'))).status).toBe(204);
    const moved = await call('POST', `${one}/files/move`, { from: '/srv/a/ünï %41&=\n', to: '/srv/a/b/c' });
    expect(FileInfo.parse(moved.body)).toMatchObject({
      path: '/srv/a/b/c',
      size: 1,
      owner: 'root',
      symlink_target: null,
    });
    const names = async (depth: number) =>
      (await call('GET', `${one}/files/list?path=/srv/a&depth=${depth}`)).body.map(({ path }: FileInfo) => path);
    expect(await names(1)).toEqual(['/srv/a/b', '/srv/a/empty']);
    expect(await names(2)).toEqual(['/srv/a/b', '/srv/a/b/c', '/srv/a/empty']);
    expect((await call('GET', `${one}/files/stat?path=/srv/a/b/c`)).body.modified_at).toMatch(/^20\d\d-/);
    expect((await call('GET', at('/srv/a/b/c'))).body).toBe('x');
    expect((await call('DELETE', at('/srv/a'))).status).toBe(204);
    expect((await call('DELETE', at('/srv/a'))).status).toBe(204);
    expect((await call('GET', at('/srv/a/b/c'))).status).toBe(404);
    expect((await call('GET', at('/proc/uptime'))).body).toMatch(/^\d+\.\d+ /);
  });

  it('what cannot be done says why', async () => {
    await daemon.say('PUT', at('/root/file'), 'x', BYTES);
    for (const [method, path, body, status, code] of [
      ['GET', at('/not/there'), undefined, 404, 'file_not_found'],
      ['GET', at('/root'), undefined, 400, 'invalid_request'],
      ['GET', at('/root/file/x'), undefined, 400, 'invalid_request'],
      ['GET', at('/dev/zero'), undefined, 400, 'invalid_request'],
      ['GET', `${one}/files/list?path=/root/file`, undefined, 400, 'invalid_request'],
      ['GET', `${one}/files/stat?path=/not/there`, undefined, 404, 'file_not_found'],
      ['GET', `${one}/files/watch?path=/not/there`, undefined, 404, 'file_not_found'],
      ['POST', `${one}/files/folder?path=/proc/x`, undefined, 404, 'file_not_found'],
      ['POST', `${one}/files/move`, { from: '/root/file', to: '/proc/file' }, 400, 'invalid_request'],
      ['POST', `${one}/files/move`, { from: '/not/there', to: '/root/x' }, 404, 'file_not_found'],
      ['DELETE', at('/proc/version'), undefined, 403, 'not_permitted'],
      ['GET', `${at('/root/file')}&user=nobody-here`, undefined, 400, 'invalid_request'],
      ['GET', `${at('/root/file')}&path=/etc/passwd`, undefined, 400, 'invalid_request'],
    ] as const) {
      const reply = await daemon.say(method, path, body);
      expect([method, path, reply.status, ErrorBody.parse(reply.body).code]).toEqual([method, path, status, code]);
      expect(reply.body.hint).not.toBe('');
      expect(JSON.stringify(reply.body)).not.toContain(daemon.parent);
    }
    const folder = await daemon.say('PUT', at('/root'), 'x', BYTES);
    expect([folder.status, folder.body.code]).toEqual([400, 'invalid_request']);
    const json = await daemon.say('PUT', at('/root/json'), {});
    expect([json.status, json.body.code, json.body.hint]).toEqual([
      415,
      'unsupported_media_type',
      expect.stringContaining('octet-stream'),
    ]);
  });

  it('hostile paths stay in the guest', async () => {
    const canary = `${daemon.parent}/canary`;
    writeFileSync(canary, 'host');
    const climbing = [
      canary,
      `../../../../../../${canary}`,
      `/proc/1/root${canary}`,
      `~/../${canary}`,
      'file:///etc/shadow',
      '~root/x',
      '%2e%2e/x',
      '$(id)',
      '; id',
    ];
    for (const path of climbing) {
      const reply = await daemon.say('GET', at(path));
      expect([path, [400, 404].includes(reply.status)]).toEqual([path, true]);
    }
    for (const path of ['a\0b', '', 'x'.repeat(4097)]) expect((await daemon.say('GET', at(path))).status).toBe(400);
    expect((await daemon.say('GET', at(`/${'x'.repeat(1000)}`))).status).toBe(400);
    await daemon.say('PUT', at(`../../../../..${canary}`), 'guest', BYTES);
    expect((await daemon.say('GET', at(canary))).body).toBe('guest');
    expect(readFileSync(canary, 'utf8')).toBe('host');
  });

  describe('watched', () => {
    async function watch(path: string, sandbox = one) {
      const reply = await daemon.fetch('GET', `${sandbox}/files/watch?path=${path}&recursive=true`);
      expect(reply.headers.get('content-type')).toBe('text/event-stream');
      const seen = { text: '', ended: false };
      void (async () => {
        for await (const chunk of reply.body!.pipeThrough(new TextDecoderStream())) seen.text += chunk;
        seen.ended = true;
      })();
      await until(async () => seen.text.startsWith('event: start\n'));
      return seen;
    }

    it('tell what happens, until the folder is gone', async () => {
      await sh(one, 'mkdir -p /srv/watched');
      const seen = await watch('/srv/watched');
      await sh(one, 'echo x > /srv/watched/f');
      await until(async () => /event: create\ndata: \{"name":"f","entry":\{"name":"f"/.test(seen.text));
      await sh(one, 'rm -r /srv/watched');
      await until(async () => seen.ended);
      expect(seen.text.endsWith('event: remove\ndata: {"name":"","entry":null}\n\n')).toBe(true);
    });

    it('end with the sandbox, and say so', async () => {
      const { body } = await daemon.say('POST', '/v1/sandboxes', { snapshot_tag: 'numpy' });
      const sandbox = `/v1/sandboxes/${body[0].id}`;
      const seen = await watch('/tmp', sandbox);
      const terminal = await Terminal.open('', sandbox);
      await daemon.say('DELETE', sandbox);
      await until(async () => seen.ended);
      expect(seen.text).toContain('event: error\ndata: {"type":"error"');
      expect(await terminal.closed).toBe(1011);
      expect(terminal.messages).toMatchObject([{ type: 'error' }]);
    });
  });
});

it('the console is text that nobody interprets', async () => {
  await sh(one, 'echo "<script>\u001b[31m" > /dev/console');
  let reply = await daemon.say('GET', `${one}/console`);
  await until(async () => {
    reply = await daemon.say('GET', `${one}/console`);
    return reply.body.includes('<script>\u001b[31m');
  });
  expect(reply.headers['content-type']).toBe('text/plain; charset=utf-8');
  expect(reply.headers['x-content-type-options']).toBe('nosniff');
});

it('open watches and terminals do not hold up the end of the daemon', async () => {
  await daemon.fetch('GET', `${two}/files/watch?path=/tmp`);
  const terminal = await Terminal.open('', two);
  const since = performance.now();
  daemon.signal('SIGTERM');
  expect(await terminal.closed).toBe(1001);
  await daemon.ended();
  expect(performance.now() - since).toBeLessThan(20_000);
  await daemon.restart();
});

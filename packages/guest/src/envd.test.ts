import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { type ClientHttp2Session, connect } from 'node:http2';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { AgentFixture, until } from './agent.fixture.js';
import { envelope } from './connect-json.js';

interface Reply {
  status: number;
  headers: Record<string, unknown>;
  body: Buffer;
}

/** What E2B's clients send that our own client never does. */
describe('the envd API', () => {
  let agent: AgentFixture;
  let session: ClientHttp2Session;

  beforeAll(async () => {
    agent = await AgentFixture.start();
    const socket = await agent.socket();
    session = connect('http://guest', { createConnection: () => socket });
  });
  afterAll(async () => {
    session.destroy();
    await agent.stop();
  });

  function request(method: string, path: string, body?: string | Buffer, headers: object = {}): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const stream = session.request({ ':method': method, ':path': path, ...headers });
      const reply: Reply = { status: 0, headers: {}, body: Buffer.alloc(0) };
      stream.on('response', (received) => {
        reply.status = received[':status'] ?? 0;
        reply.headers = received;
      });
      stream.on('data', (chunk: Buffer) => {
        reply.body = Buffer.concat([reply.body, chunk]);
      });
      stream.on('end', () => resolve(reply)).on('error', reject);
      stream.end(body);
    });
  }
  const unary = async (procedure: string, body: object) => {
    const reply = await request('POST', `/${procedure}`, JSON.stringify(body));
    return { status: reply.status, ...JSON.parse(reply.body.toString()) };
  };
  const streaming = async (procedure: string, body: Buffer, headers: object = {}) => {
    const reply = await request('POST', `/${procedure}`, body, {
      'content-type': 'application/connect+json',
      ...headers,
    });
    expect(reply.status).toBe(200);
    const frames: { flags: number; message: Record<string, never> }[] = [];
    for (let at = 0; at < reply.body.length; ) {
      const end = at + 5 + reply.body.readUInt32BE(at + 1);
      frames.push({ flags: reply.body[at] ?? 0, message: JSON.parse(reply.body.subarray(at + 5, end).toString()) });
      at = end;
    }
    return frames;
  };

  it('answers health and unknown routes', async () => {
    expect((await request('GET', '/health')).status).toBe(204);
    expect((await request('GET', '/nowhere')).status).toBe(404);
    expect((await request('POST', '/process.Process/Nothing', '{}')).status).toBe(404);
  });

  it('refuses what it cannot read', async () => {
    expect(await unary('filesystem.Filesystem/Stat', { path: 5 })).toMatchObject({
      status: 400,
      code: 'invalid_argument',
    });
    expect((await request('POST', '/forkd/eval', 'x'.repeat(5 << 20))).status).toBe(413);
    const [end] = await streaming('process.Process/Start', Buffer.from([0, 255, 255, 255, 255]));
    expect(end).toMatchObject({ flags: 2, message: { error: { code: 'resource_exhausted' } } });
    const [none] = await streaming('process.Process/Start', Buffer.alloc(0));
    expect(none).toMatchObject({ flags: 2, message: { error: { code: 'invalid_argument' } } });
  });

  it('lists, connects to, feeds and outlives a process by tag', async () => {
    const start = envelope({ process: { cmd: 'cat' }, tag: 'cat' });
    const started = streaming('process.Process/Start', start);
    const process = { tag: 'cat' };
    await until(async () => (await unary('process.Process/List', {})).processes.length === 1);
    const connected = streaming('process.Process/Connect', envelope({ process }));
    const { processes } = await unary('process.Process/List', {});
    expect(processes).toMatchObject([{ config: { cmd: 'cat' }, tag: 'cat' }]);
    const input = { input: { stdin: Buffer.from('hi').toString('base64') } };
    const fed = await streaming(
      'process.Process/StreamInput',
      Buffer.concat([envelope({ start: { process } }), envelope({ data: input }), envelope({ keepalive: {} })]),
    );
    expect(fed).toEqual([
      { flags: 0, message: {} },
      { flags: 2, message: {} },
    ]);
    await until(async () => (await unary('process.Process/CloseStdin', { process })).status === 200);
    for (const frames of [await started, await connected]) {
      expect(frames[0]?.message).toMatchObject({ event: { start: { pid: processes[0].pid } } });
      expect(frames.at(-2)?.message).toMatchObject({
        event: { end: { exitCode: 0, exited: true, status: 'exit status 0' } },
      });
      expect(frames.at(-1)).toEqual({ flags: 2, message: {} });
    }
    expect(JSON.stringify(await started)).toContain('aGk=');
    const replayed = await streaming('process.Process/Connect', envelope({ process: { pid: processes[0].pid } }));
    expect(replayed).toHaveLength(3);
    expect(await streaming('process.Process/Connect', envelope({ process: { pid: 1 } }))).toMatchObject([
      { flags: 2, message: { error: { code: 'not_found' } } },
    ]);
  });

  it('sends keepalives into silence', async () => {
    const start = envelope({ process: { cmd: 'sleep', args: ['1.3'] }, stdin: false });
    const frames = await streaming('process.Process/Start', start, { 'keepalive-ping-interval': '1' });
    expect(frames.map(({ message }) => Object.keys((message as { event?: object }).event ?? {})[0])).toEqual([
      'start',
      'keepalive',
      'end',
      undefined,
    ]);
  });

  it('leaves a process alone when its client goes', async () => {
    const stream = session.request({ ':method': 'POST', ':path': '/process.Process/Start' });
    stream.end(envelope({ process: { cmd: 'sleep', args: ['60'] }, tag: 'left' }));
    await new Promise((resolve) => stream.once('data', resolve));
    stream.destroy();
    await new Promise((resolve) => setTimeout(resolve, 50));
    const signal = { process: { tag: 'left' }, signal: 'SIGNAL_SIGKILL' };
    expect(await unary('process.Process/SendSignal', signal)).toEqual({ status: 200 });
    await until(async () => (await unary('process.Process/SendSignal', signal)).status === 404);
  });

  it('takes forms, and gives ranges', async () => {
    const [one, two] = [join(agent.directory, 'form/one'), join(agent.directory, 'form/two')];
    const form = (...names: string[]) =>
      `${names.map((name) => `--b\r\nContent-Disposition: form-data; name="file"; filename="${name}"\r\n\r\ntext of it\r\n`).join('')}--b--\r\n`;
    const type = { 'content-type': 'multipart/form-data; boundary=b' };
    const reply = await request('POST', '/files', form(one, two), type);
    expect(JSON.parse(reply.body.toString())).toMatchObject([
      { path: one, name: 'one', type: 'file' },
      { path: two, name: 'two', type: 'file' },
    ]);
    expect(await readFile(two, 'utf8')).toBe('text of it');
    expect((await request('POST', '/files', form(one, one), type)).status).toBe(400);
    expect((await request('POST', '/files', form(one).slice(0, -10), type)).status).toBe(400);
    const part = await request('GET', `/files?path=${two}`, undefined, { range: 'bytes=5-6' });
    expect([part.status, part.body.toString(), part.headers['content-range']]).toEqual([206, 'of', 'bytes 5-6/10']);
    expect((await request('GET', '/files?path=/dev/null')).status).toBe(400);
    expect((await request('GET', `/files?path=${one}&username=nobody-here`)).status).toBe(401);
    const gzip = { 'content-encoding': 'gzip', 'content-type': 'application/octet-stream' };
    expect((await request('POST', `/files?path=${one}`, 'x', gzip)).status).toBe(415);
  });

  it('lets a client poll a watch', async () => {
    const path = join(agent.directory, 'polled');
    await mkdir(path);
    const { watcherId } = await unary('filesystem.Filesystem/CreateWatcher', { path });
    await writeFile(join(path, 'f'), 'x');
    const { events } = await unary('filesystem.Filesystem/GetWatcherEvents', { watcherId });
    expect(events).toMatchObject([
      { name: 'f', type: 'EVENT_TYPE_CREATE' },
      { name: 'f', type: 'EVENT_TYPE_WRITE' },
    ]);
    expect(await unary('filesystem.Filesystem/RemoveWatcher', { watcherId })).toEqual({ status: 200 });
    expect((await unary('filesystem.Filesystem/GetWatcherEvents', { watcherId })).status).toBe(404);
  });

  it('starts later processes from what init says', async () => {
    const init = { envVars: { FROM_INIT: 'yes' }, defaultWorkdir: '/usr', timestamp: '2026-01-01T00:00:00Z' };
    expect((await request('POST', '/init', JSON.stringify(init))).status).toBe(204);
    expect(JSON.parse((await request('GET', '/envs')).body.toString())).toEqual({ FROM_INIT: 'yes' });
    const start = envelope({ process: { cmd: '/bin/sh', args: ['-c', 'echo $FROM_INIT $PWD'] } });
    const output = Buffer.from('yes /usr\n').toString('base64');
    expect(JSON.stringify(await streaming('process.Process/Start', start))).toContain(output);
    expect((await request('POST', '/init', JSON.stringify({ defaultUser: 'nobody-here' }))).status).toBe(401);
  });
});

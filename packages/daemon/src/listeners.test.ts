import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { Agent, createServer, get, type IncomingMessage, ServerResponse } from 'node:http';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { connect as tlsConnect } from 'node:tls';
import { ROUTES } from '@forkd/protocol';
import fastify from 'fastify';
import { afterAll, describe, expect, it } from 'vitest';
import { readConfig } from './config.js';
import { readFlags } from './flags.js';
import { listen } from './listeners.js';
import { followOperations } from './operation.js';
import { serveRoute } from './serve-route.js';
import { TestDaemon, temporaryData } from './testing.js';

const root = mkdtempSync(`${tmpdir()}/forkd-listeners-`);
afterAll(() => rmSync(root, { recursive: true }));

describe('the Unix socket', () => {
  it('can be all there is, belongs to its owner alone, and goes with the daemon', async () => {
    const socketPath = `${root}/alone.sock`;
    await using daemon = await TestDaemon.start(['--bind', 'none', '--socket', socketPath]);
    expect(statSync(socketPath).mode & 0o777).toBe(0o600);
    expect((await daemon.call('/v1/sandboxes', { socketPath })).status).toBe(200);
    expect(daemon.log).not.toContain('http://');
    daemon.signal('SIGTERM');
    expect(await daemon.ended()).toBe(0);
    expect(existsSync(socketPath)).toBe(false);
  });

  it('of a dead daemon is replaced, of a living one it is not', async () => {
    const socketPath = `${root}/twice.sock`;
    const dead = await TestDaemon.start(['--socket', socketPath]);
    dead.signal('SIGKILL');
    await dead.ended();
    expect(existsSync(socketPath)).toBe(true);
    await using living = await TestDaemon.start(['--socket', socketPath], dead.root);
    await using second = TestDaemon.launch(['--socket', socketPath]);
    expect(await second.ended()).toBe(1);
    expect(second.log).toMatch(/error: a daemon is listening on .* already\nhint: ./);
    expect((await living.call('/healthz', { socketPath })).status).toBe(200);
  });

  it('never replaces a file that is something else', async () => {
    writeFileSync(`${root}/precious`, 'data');
    await using daemon = TestDaemon.launch(['--socket', `${root}/precious`]);
    expect(await daemon.ended()).toBe(1);
    expect(daemon.log).toContain('is not a socket');
    expect(readFileSync(`${root}/precious`, 'utf8')).toBe('data');
  });
});

it('a port that is taken is an error with a hint', async () => {
  const other = createServer();
  await new Promise<void>((done) => other.listen(0, '127.0.0.1', done));
  const { port } = other.address() as { port: number };
  await using daemon = TestDaemon.launch(['--bind', `127.0.0.1:${port}`]);
  expect(await daemon.ended()).toBe(1);
  expect(daemon.log).toMatch(/EADDRINUSE\nhint: ./);
  other.close();
});

describe('TLS', () => {
  const [cert, key] = [`${root}/cert.pem`, `${root}/key.pem`];
  function makeCertificate(name: string): void {
    const subject = ['-subj', `/CN=${name}`, '-days', '2', '-out', cert, '-keyout', key];
    const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1'];
    execFileSync('openssl', ['req', '-x509', '-nodes', ...curve, ...subject], { stdio: 'ignore' });
  }

  it('is read again at SIGHUP, and a pair that does not fit is not taken', async () => {
    makeCertificate('first');
    await using daemon = await TestDaemon.start(['--tls-cert', cert, '--tls-key', key]);
    expect(daemon.url).toMatch(/^https:/);
    const insecure = { rejectUnauthorized: false };
    const options = { ...insecure, headers: { host: 'localhost' } };
    expect((await daemon.call('/v1/sandboxes', options)).status).toBe(200);
    const name = (): Promise<string> =>
      new Promise((done) => {
        const socket = tlsConnect(Number(new URL(daemon.url).port), '127.0.0.1', insecure, () => {
          done(String(socket.getPeerCertificate().subject.CN));
          socket.destroy();
        });
      });
    expect(await name()).toBe('first');
    const oldKey = readFileSync(key);
    makeCertificate('second');
    await daemon.reload();
    expect(await name()).toBe('second');
    writeFileSync(key, oldKey);
    await daemon.reload();
    expect(daemon.log).toContain('kept as it was: certificate');
    expect(await name()).toBe('second');
    expect(await daemon.raw('GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n')).not.toMatch(/^HTTP\/1\.1 200/);
  });

  it('with a file that is not there does not start', async () => {
    await using daemon = TestDaemon.launch(['--tls-cert', `${root}/absent`, '--tls-key', `${root}/absent`]);
    expect(await daemon.ended()).toBe(1);
    expect(daemon.log).toMatch(/cannot use the certificate .*\nhint: ./);
  });
});

describe('the end', () => {
  const HALF =
    'POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n';

  async function halfRequest(url: string): Promise<{ socket: Socket; received: () => string }> {
    let received = '';
    const socket = connect(Number(new URL(url).port), '127.0.0.1');
    socket.write(HALF);
    await new Promise<void>((done) => {
      socket.on('data', (chunk) => {
        received += chunk;
        done();
      });
    });
    return { socket, received: () => received };
  }

  it('waits for what is being answered, takes nothing new, and lets idle connections go', async () => {
    await using daemon = await TestDaemon.start();
    const agent = new Agent({ keepAlive: true });
    await daemon.call('/version', { agent });
    const { socket, received } = await halfRequest(daemon.url);
    daemon.signal('SIGTERM');
    await expect
      .poll(() =>
        daemon.call('/version').then(
          () => 'answered',
          () => 'refused',
        ),
      )
      .toBe('refused');
    socket.write('{}');
    await new Promise((done) => socket.once('close', done));
    expect(received()).toMatch(/HTTP\/1.1 400[^\0]*connection: close[^\0]*invalid_request/i);
    expect(await daemon.ended()).toBe(0);
    agent.destroy();
  });

  it('comes at once with a second signal', async () => {
    await using daemon = await TestDaemon.start();
    const { socket } = await halfRequest(daemon.url);
    socket.on('error', () => {});
    daemon.signal('SIGTERM');
    await expect
      .poll(() =>
        daemon.call('/version').then(
          () => 'answered',
          () => 'refused',
        ),
      )
      .toBe('refused');
    daemon.signal('SIGINT');
    expect(await daemon.ended()).toBe(130);
  });

  it.each(['obeys its signal', 'ignores its signal'])('does not wait for a stream that %s', async (kind) => {
    const data = temporaryData();
    const flags = readFlags(['--data', data, '--bind', '127.0.0.1:0', '--socket', `${data}/socket`], {});
    if (typeof flags === 'string') throw new Error(flags);
    const app = fastify();
    followOperations(app, []);
    serveRoute(app, ROUTES.events, ({ reply, signal }) => {
      reply.hijack();
      reply.raw.writeHead(200, { 'content-type': 'text/event-stream' });
      reply.raw.write('event: start\n\n');
      if (kind === 'obeys its signal') signal.addEventListener('abort', () => reply.raw.end());
    });
    const listeners = await listen(app, readConfig(flags, ''));
    const reply = await new Promise<IncomingMessage>((started) =>
      get({ path: '/v1/events', socketPath: `${data}/socket` }, started),
    );
    const ended = new Promise((done) => reply.on('end', () => done('end')).on('error', () => done('cut')));
    reply.resume();
    const before = Date.now();
    await listeners.drain();
    expect(await ended).toBe(kind === 'obeys its signal' ? 'end' : 'cut');
    expect(Date.now() - before).toBeLessThan(3000);
    await expect.poll(() => app.operations.size).toBe(0);
    rmSync(data, { recursive: true });
  });
});

it('an upgrade can take the way of every other request, and does not hold the end up', async () => {
  const data = temporaryData();
  const flags = readFlags(['--data', data, '--bind', 'none', '--socket', `${data}/socket`], {});
  if (typeof flags === 'string') throw new Error(flags);
  const app = fastify();
  const statuses: number[] = [];
  followOperations(app, [({ status }) => statuses.push(status)]);
  app.server.on('upgrade', (request, socket: Socket) => {
    const response = new ServerResponse(request);
    response.assignSocket(socket);
    app.routing(request, response);
  });
  serveRoute(app, ROUTES.pty, ({ request, reply }) => {
    reply.hijack();
    request.raw.socket.write('HTTP/1.1 101 Switching Protocols\r\n\r\n');
  });
  const listeners = await listen(app, readConfig(flags, ''));
  const socket = connect(`${data}/socket`);
  const upgrade = 'Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n';
  socket.write(`GET /v1/sandboxes/sb-00000000000000000000/pty HTTP/1.1\r\n${upgrade}`);
  expect(String(await new Promise((done) => socket.once('data', done)))).toContain('101');
  const closed = new Promise((done) => socket.once('close', done));
  await listeners.drain();
  await closed;
  await expect.poll(() => statuses).toEqual([101]);
  rmSync(data, { recursive: true });
});

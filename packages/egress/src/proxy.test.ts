import { createServer as createHttp, type Server as HttpServer, type IncomingMessage } from 'node:http';
import { createServer as createHttps } from 'node:https';
import { createServer, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { FakeInternet, heard } from './internet.fixture.js';

let internet: FakeInternet;
const seen: IncomingMessage[] = [];
const [GOOD, EVIL, SMTP, DEEP] = ['203.0.113.1', '203.0.113.66', '203.0.113.25', '10.0.0.5'];

function answering(name: string): (request: IncomingMessage, reply: import('node:http').ServerResponse) => void {
  return (request, reply) => {
    seen.push(request);
    let body = '';
    request.on('data', (chunk) => {
      body += chunk;
    });
    request.on('end', () => reply.setHeader('x-from', name).end(`${name} ${request.method} ${request.url} ${body}`));
  };
}

const secure = (name: string) =>
  createHttps({ SNICallback: (_servername, done) => done(null, internet.world.contextFor(name)) }, answering(name));

beforeAll(async () => {
  internet = new FakeInternet();
  await internet.start();
  internet.names.set('good.example', [GOOD!]);
  internet.names.set('evil.example', [EVIL!]);
  internet.names.set('smtp.example', [SMTP!]);
  internet.names.set('rebind.example', ['127.0.0.1', DEEP!, '169.254.169.254', '::1']);
  const wss: HttpServer = secure('good.example');
  wss.on('upgrade', (request: IncomingMessage, socket: Socket) => {
    seen.push(request);
    socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello ');
    socket.pipe(socket);
  });
  await internet.host(GOOD!, 443, wss);
  await internet.host(GOOD!, 80, createHttp(answering('good.example')));
  await internet.host(EVIL!, 443, secure('evil.example'));
  await internet.host(EVIL!, 80, createHttp(answering('evil.example')));
  await internet.host(DEEP!, 80, createHttp(answering('deep')));
  await internet.host(
    SMTP!,
    25,
    createServer((socket) => void socket.on('error', () => {}).write('220 hello\r\n')),
  );
  // Echoes when all has arrived: needs an end that is passed on.
  await internet.host(
    SMTP!,
    7,
    createServer({ allowHalfOpen: true }, (socket) => {
      const chunks: Buffer[] = [];
      socket.on('data', (chunk: Buffer) => chunks.push(chunk)).on('end', () => socket.end(Buffer.concat(chunks)));
    }),
  );
  await internet.host(
    SMTP!,
    9,
    createServer((socket) => void socket.on('error', () => {}).pause()),
  );
  await internet.host(
    SMTP!,
    99,
    createServer((socket) => void socket.once('data', () => socket.resetAndDestroy())),
  );
});

beforeEach(() => {
  internet.dialled.length = 0;
  seen.length = 0;
});

afterAll(() => internet.stop());

const get = (host: string, path = '/', more = ''): string => `GET ${path} HTTP/1.1\r\nHost: ${host}\r\n${more}\r\n`;
const last = (host: string, path = '/', more = ''): string => get(host, path, `Connection: close\r\n${more}`);

async function https(address: string, name: string | undefined, ca?: string, request = last(name ?? 'x')) {
  const socket = internet.tls(internet.connect(address, 443), name, ca);
  socket.write(request);
  return heard(socket);
}

async function http(address: string, request: string, port = 80) {
  const socket = internet.connect(address, port);
  socket.write(request);
  return heard(socket);
}

describe('TLS', () => {
  it('goes to a name that is allowed, and to no other', async () => {
    internet.allow({ allow: ['good.example:443'] });
    expect((await https(GOOD!, 'good.example')).text).toMatch(/200 OK[\s\S]*good.example GET \//);
    expect(await https(EVIL!, 'evil.example')).toEqual({ text: '', cut: true });
    expect(internet.dialled).toEqual([`${GOOD} 443`]);
    const { counters, decisions } = internet.report();
    expect(counters).toMatchObject({ allowed: 1, denied: 1 });
    expect(counters.bytes_sent).toBeGreaterThan(200);
    expect(decisions.at(-2)).toMatchObject({
      kind: 'tcp',
      name: 'good.example',
      address: GOOD,
      port: 443,
      allowed: true,
    });
    expect(decisions.at(-1)).toMatchObject({ name: 'evil.example', address: EVIL, allowed: false });
    expect(internet.denied.at(-1)).toMatchObject({ name: 'evil.example' });
  });

  it('whatever address the guest connects to, it reaches the one that was found for the name', async () => {
    internet.allow({ allow: ['good.example'] });
    for (const address of [EVIL!, DEEP!, '169.254.169.254', '2001:db8::7'])
      expect((await https(address, 'good.example')).text).toContain('good.example GET');
    expect(new Set(internet.dialled)).toEqual(new Set([`${GOOD} 443`]));
  });

  it('a name that points into the network of the host goes nowhere', async () => {
    internet.allow({ preset: 'internet', allow: ['rebind.example'] });
    expect((await https(GOOD!, 'rebind.example')).cut).toBe(true);
    expect((await http(GOOD!, last('rebind.example'))).cut).toBe(true);
    expect(internet.dialled).toEqual([]);
  });

  it('without a name the address counts', async () => {
    internet.allow({ allow: ['good.example', `${EVIL}:443`] });
    await https(EVIL!, undefined);
    expect(internet.dialled).toEqual([`${EVIL} 443`]);
    expect((await https('203.0.113.77', undefined)).cut).toBe(true);
  });

  it('who was told an address, waits, and then asks there for another name is cut off', async () => {
    internet.names.set('shared.example', [EVIL!]);
    internet.allow({ allow: ['shared.example'] });
    expect(await internet.resolve('shared.example')).toEqual([EVIL]);
    const socket = internet.connect(EVIL!, 443);
    await sleep(500);
    expect(internet.dialled).toEqual([`${EVIL} 443`]);
    const late = internet.tls(socket, 'evil.example');
    late.write(last('evil.example'));
    expect(await heard(late)).toEqual({ text: '', cut: true });
    expect(seen).toEqual([]);
  });
});

describe('HTTP', () => {
  it('each request of a connection goes where that one may go', async () => {
    internet.names.set('also.example', [EVIL!]);
    internet.allow({ allow: ['good.example', 'also.example'] });
    const requests = `${get('good.example', '/1')}${get('also.example', '/2')}${last('good.example', '/3')}`;
    const { text } = await http(GOOD!, requests);
    expect(text.match(/(good|evil)\.example GET \/\d/g)).toEqual([
      'good.example GET /1',
      'evil.example GET /2',
      'good.example GET /3',
    ]);
    const slipped = await http(GOOD!, `${get('good.example', '/1')}${last('evil.example', '/2')}`);
    expect(slipped.cut).toBe(true);
    expect(slipped.text).not.toContain('/2');
    expect(seen.map(({ url, headers }) => `${headers.host}${url}`)).not.toContain('evil.example/2');
  });

  it.each([
    ['another host in the URL', 'GET http://evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n'],
    ['two hosts', 'GET / HTTP/1.1\r\nHost: good.example\r\nHost: evil.example\r\n\r\n'],
    ['no host', 'GET / HTTP/1.0\r\n\r\n'],
    ['an address as host', 'GET / HTTP/1.1\r\nHost: 203.0.113.66\r\n\r\n'],
    ['a tunnel', 'CONNECT evil.example:443 HTTP/1.1\r\nHost: good.example\r\n\r\n'],
    [
      'two lengths',
      'POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    ],
    ['a request to be repeated', 'TRACE / HTTP/1.1\r\nHost: good.example\r\n\r\n'],
    ['bare line feeds', 'GET / HTTP/1.1\nHost: evil.example\n\n'],
    ['an empty line first', '\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n'],
    ['lower case', 'get / http/1.1\r\nHost: evil.example\r\n\r\n'],
    ['HTTP/2 in clear text', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'],
  ])('%s: cut off', async (_what, request) => {
    internet.allow({ allow: ['good.example', 'shared.example'] });
    internet.names.set('shared.example', [EVIL!]);
    await internet.resolve('shared.example');
    // Also at an address that it was told for a name that is allowed.
    for (const address of [EVIL!, '203.0.113.78']) {
      if (request.includes('HTTP/1.0') && address === EVIL) continue;
      expect((await http(address, request)).cut).toBe(true);
    }
    expect(seen).toEqual([]);
  });

  it('bodies, with and without a length', async () => {
    internet.allow({ allow: ['good.example'] });
    const chunked = `POST /a HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n`;
    expect((await http(GOOD!, chunked)).text).toContain('good.example POST /a abc');
    const sized = `PUT /b HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\nContent-Length: 3\r\n\r\nxyz`;
    expect((await http(GOOD!, sized)).text).toContain('good.example PUT /b xyz');
    expect((await http(GOOD!, last('good.example').replace('GET', 'HEAD'))).text).toMatch(
      /^HTTP\/1.1 200 OK[\s\S]*\r\n\r\n$/,
    );
  });

  it('a connection cannot become one of HTTP/2', async () => {
    internet.allow({ allow: ['good.example'] });
    const wish = 'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n';
    const { text } = await http(GOOD!, get('good.example', '/', wish));
    expect(text).toMatch(/^HTTP\/1.1 200 OK[\s\S]*good.example GET \//);
    expect(seen[0]?.headers).not.toHaveProperty('upgrade');
    expect(seen[0]?.headers).not.toHaveProperty('http2-settings');
  });

  it('where the address decides, bytes pass as they are', async () => {
    internet.allow({ allow: [`${DEEP}:80`] });
    expect((await http(DEEP!, last('whatever.example'))).text).toContain('deep GET /');
    expect((await http(GOOD!, last('good.example'))).cut).toBe(true);
  });

  it('a host that cannot be reached is said to be so', async () => {
    internet.names.set('down.example', ['203.0.113.99']);
    internet.allow({ allow: ['down.example'] });
    expect((await http(GOOD!, last('down.example'))).text).toMatch(/^HTTP\/1.1 502 [\s\S]*ECONNREFUSED/);
  });
});

describe('other protocols', () => {
  it('a server that speaks first, at an address that was given for its name', async () => {
    internet.allow({ allow: ['smtp.example:25'] });
    const unknown = internet.connect('203.0.113.26', 25);
    expect(await internet.resolve('smtp.example')).toEqual([SMTP]);
    const socket = internet.connect(SMTP!, 25);
    const [greeting] = await new Promise<Buffer[]>((done) => socket.once('data', (chunk: Buffer) => done([chunk])));
    expect(greeting?.toString()).toBe('220 hello\r\n');
    socket.destroy();
    // One that was not told it: nothing can be decided until it says something, and it does not.
    expect((await heard(unknown)).cut).toBe(true);
  });

  it('ends are passed on one by one, and so are broken connections', async () => {
    internet.allow({ allow: [`${SMTP}`] });
    const echo = internet.connect(SMTP!, 7);
    echo.end(Buffer.alloc(100_000, 'x'));
    const { text, cut } = await heard(echo);
    expect([text.length, cut]).toEqual([100_000, false]);
    expect((await http(SMTP!, '\0x', 99)).cut).toBe(true);
    const gone = await http(SMTP!, '\0x', 98);
    expect(gone.cut).toBe(true);
  });

  it('one that does not read stops the one that writes', async () => {
    internet.allow({ allow: [`${SMTP}`] });
    const before = process.memoryUsage().rss;
    const socket = internet.connect(SMTP!, 9);
    const chunk = Buffer.alloc(1 << 20);
    let written = 0;
    for (; written < 200; written++)
      if (
        !socket.write(chunk) &&
        !(await Promise.race([new Promise((done) => socket.once('drain', () => done(true))), sleep(500)]))
      )
        break;
    expect(written).toBeLessThan(50);
    expect(process.memoryUsage().rss - before).toBeLessThan(150 << 20);
    socket.destroy();
  });
});

describe('a policy that changes', () => {
  it('cuts what is not allowed any more, and nothing else', async () => {
    internet.allow({ allow: ['good.example', `${SMTP}:7`] });
    const kept = internet.connect(SMTP!, 7);
    kept.write('\0');
    const cut = internet.tls(internet.connect(GOOD!, 443), 'good.example');
    cut.write(get('good.example'));
    const plain = internet.connect(GOOD!, 80);
    plain.write(get('good.example'));
    await Promise.all([cut, plain].map((socket) => new Promise((done) => socket.once('data', done))));
    const ends = Promise.all([heard(cut), heard(plain)]);
    internet.allow({ allow: [`${SMTP}:7`] });
    for (const end of await ends) expect(end.cut).toBe(true);
    expect(kept.destroyed).toBe(false);
    kept.end('x');
    expect(await heard(kept)).toEqual({ text: '\0x', cut: false });
    expect(await internet.resolve('good.example')).toEqual([]);
  });
});

describe('secrets', () => {
  const SECRET = 'Bearer kept-from-the-guest';
  const rules = { 'good.example': { headers: { authorization: SECRET, 'x-key': 'k' } } };

  it('are set on what goes to their host, in the place of what the guest has sent', async () => {
    internet.allow({ allow: ['good.example', 'evil.example'] }, rules);
    const request = last('good.example', '/', 'AUTHORIZATION: guess\r\nX-Other: y\r\n');
    const { text } = await https(EVIL!, 'good.example', internet.ours.certificate, request);
    expect(text).toContain('good.example GET /');
    expect(seen[0]?.headers).toMatchObject({
      authorization: SECRET,
      'x-key': 'k',
      'x-other': 'y',
      host: 'good.example',
    });
    expect(seen[0]?.rawHeaders.filter((name) => name.toLowerCase() === 'authorization')).toHaveLength(1);
    // Other hosts are not spoken for, and get nothing.
    expect((await https(EVIL!, 'evil.example')).text).toContain('evil.example GET');
    expect(seen[1]?.headers.authorization).toBeUndefined();
    expect(JSON.stringify(internet.report())).not.toContain('kept-from');
  });

  it('never go to a host that is not the one it says it is, nor over plain HTTP, nor to another host', async () => {
    internet.names.set('fake.example', [EVIL!]);
    internet.allow({ allow: ['fake.example', 'good.example'] }, { 'fake.example': rules['good.example'], ...rules });
    const { text } = await https(EVIL!, 'fake.example', internet.ours.certificate);
    expect(text).toMatch(/^HTTP\/1.1 502 [\s\S]*ERR_TLS_CERT_ALTNAME_INVALID/);
    const other = await https(GOOD!, 'good.example', internet.ours.certificate, last('fake.example'));
    expect(other).toEqual({ text: '', cut: true });
    await http(GOOD!, last('good.example'));
    expect(seen.map(({ headers }) => headers.authorization)).toEqual([undefined]);
  });

  it('a rule opens nothing, and one that is taken away cuts off', async () => {
    internet.allow({ allow: [] }, rules);
    expect((await https(GOOD!, 'good.example', internet.ours.certificate)).cut).toBe(true);
    internet.allow({ preset: 'internet' }, rules);
    const socket = internet.tls(internet.connect(GOOD!, 443), 'good.example', internet.ours.certificate);
    socket.write(get('good.example'));
    await new Promise((done) => socket.once('data', done));
    const end = heard(socket);
    internet.allow({ preset: 'internet' });
    expect((await end).cut).toBe(true);
  });

  it('WebSockets pass', async () => {
    internet.allow({ allow: ['good.example'] }, rules);
    const socket = internet.tls(internet.connect(GOOD!, 443), 'good.example', internet.ours.certificate);
    socket.write(get('good.example', '/ws', 'Connection: Upgrade\r\nUpgrade: websocket\r\n'));
    let text = '';
    socket.on('data', (chunk) => {
      text += chunk;
    });
    while (!text.endsWith('hello ')) await sleep(5);
    expect(text).toMatch(/^HTTP\/1.1 101 Switching Protocols/);
    socket.write('echo');
    while (!text.endsWith('hello echo')) await sleep(5);
    expect(seen[0]?.headers).toMatchObject({ authorization: SECRET, upgrade: 'websocket' });
    socket.destroy();
  });
});

it('those that say nothing whole are few, and cut off after a while', async () => {
  internet.allow({ preset: 'none' });
  const begun = performance.now();
  await expect.poll(() => internet.report().counters.open, { timeout: 5_000 }).toBe(0);
  const sockets = Array.from({ length: 200 }, () => internet.connect(GOOD!, 443));
  for (const socket of sockets) socket.write(Buffer.from('160301020001', 'hex'));
  await sleep(1_000);
  expect(internet.report().counters.open).toBeLessThanOrEqual(128);
  for (const { cut } of await Promise.all(sockets.map(heard))) expect(cut).toBe(true);
  expect(performance.now() - begun).toBeLessThan(20_000);
  await expect.poll(() => internet.report().counters.open).toBe(0);
});

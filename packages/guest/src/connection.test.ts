import { once } from 'node:events';
import { createServer as createHttp2Server, type Http2Server, type ServerHttp2Stream } from 'node:http2';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { type Duplex, duplexPair } from 'node:stream';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { AgentFixture } from './agent.fixture.js';
import { connectGuest, type GuestClient } from './index.js';

describe('the connection', () => {
  let agent: AgentFixture;
  let guest: GuestClient;

  beforeAll(async () => {
    agent = await AgentFixture.start();
    guest = await agent.client();
  });
  afterAll(() => agent.stop());

  it('serves health and metrics', async () => {
    expect(await guest.health()).toMatchObject({ protocol: 1, identity: null });
    const { mem_total, mem_used, cpu_count, disk_total } = await guest.metrics();
    expect(mem_total).toBeGreaterThan(mem_used);
    expect(cpu_count).toBeGreaterThan(0);
    expect(disk_total).toBeGreaterThan(0);
  });

  it('survives being cut and garbage from a client', async () => {
    const pending = await agent.client();
    const late = pending.exec({ command: 'sleep 60' });
    pending.close();
    await expect(late).rejects.toMatchObject({ code: 'cancelled' });
    await expect(pending.health()).rejects.toMatchObject({ code: 'cancelled' });
    const socket = await agent.socket();
    socket.on('error', () => {});
    socket.write(Buffer.alloc(100_000, 'garbage'));
    socket.resume();
    await new Promise((resolve) => socket.once('close', resolve));
    expect((await guest.health()).protocol).toBe(1);
  });

  it('tunnels to a port of the guest', async () => {
    const echo: Server = createServer((socket) => socket.pipe(socket));
    await once(echo.listen(0, '127.0.0.1'), 'listening');
    const { port } = echo.address() as AddressInfo;
    const stream = await guest.connect(port);
    stream.write('ping');
    expect(String((await once(stream, 'data'))[0])).toBe('ping');
    stream.end();
    await once(stream, 'close');
    echo.close();
    await expect(guest.connect(port)).rejects.toMatchObject({ code: 'guest_error' });
  });

  it('stops when told', async () => {
    const own = await AgentFixture.start();
    const client = await own.client();
    const exited = once(own.process, 'exit');
    const lost = client.exec({ command: 'sleep 60' }).catch((thrown: unknown) => thrown);
    await client.shutdown();
    expect(await exited).toEqual([0, null]);
    const outcome = (await lost) as { code?: string; signal?: string };
    expect(outcome.code ?? outcome.signal).toMatch(/vmm_exited|SIGTERM/);
    await expect(client.health()).rejects.toMatchObject({ code: 'vmm_exited' });
    await own.stop();
  });
});

describe('a hostile guest', () => {
  async function against(answer: (stream: ServerHttp2Stream) => void, check: (guest: GuestClient) => Promise<void>) {
    const server: Http2Server = createHttp2Server();
    server.on('stream', (stream: ServerHttp2Stream) => {
      stream.on('error', () => {});
      answer(stream);
    });
    server.on('sessionError', () => {});
    const [ours, theirs] = duplexPair();
    server.emit('connection', theirs);
    const guest = connectGuest(ours);
    try {
      await check(guest);
    } finally {
      guest.close();
      theirs.destroy();
      server.close();
    }
  }

  const reply =
    (body: string | Buffer, status = 200) =>
    (stream: ServerHttp2Stream) => {
      stream.respond({ ':status': status });
      stream.end(body);
    };
  const flood = (stream: ServerHttp2Stream) => {
    stream.respond({ ':status': 200 });
    const chunk = Buffer.alloc(1 << 16, 'x');
    const more = () => {
      while (stream.writable && stream.write(chunk));
    };
    stream.on('drain', more);
    more();
  };

  it('cannot pass nonsense as an answer', async () => {
    for (const body of ['', '[]', '{', '{"protocol":"1"}', 'null', '\xff'])
      await against(reply(body), async (guest) => {
        await expect(guest.health()).rejects.toMatchObject({ code: 'guest_protocol' });
        await expect(guest.eval({ language: 'python', code: '1' })).rejects.toMatchObject({ code: 'guest_protocol' });
        await expect(guest.exec({ command: 'true' })).rejects.toMatchObject({ code: 'guest_protocol' });
        await expect(guest.files.watch('/')).rejects.toMatchObject({ code: 'guest_protocol' });
      });
  });

  it('cannot pass nonsense as a wish', async () => {
    for (const line of ['{', '7', '{"id":"1","fork":1,"tag":null}', '{"id":1,"fork":1}'])
      await against(reply(`${line}\n`), async (guest) => {
        await expect(guest.wishes().next()).rejects.toMatchObject({ code: 'guest_protocol' });
      });
  });

  it('cannot flood the host', async () => {
    await against(flood, async (guest) => {
      await expect(guest.health()).rejects.toMatchObject({ code: 'too_large' });
      await expect(guest.files.read('/x', { maxBytes: 1 << 20 })).rejects.toMatchObject({ code: 'too_large' });
      await expect(guest.exec({ command: 'true' })).rejects.toMatchObject({ code: 'guest_protocol' });
      await expect(guest.wishes().next()).rejects.toMatchObject({ code: 'too_large' });
    });
  });

  it('cannot send more or less of a file than it promised', async () => {
    for (const size of [2, 4])
      await against(
        (stream) => {
          stream.respond({ ':status': 200, 'content-length': size });
          stream.end('abc');
        },
        async (guest) => {
          const read = async () => {
            for await (const _ of (await guest.files.readStream('/x')).stream);
          };
          await expect(read()).rejects.toMatchObject({ code: 'guest_protocol' });
        },
      );
  });

  it('cannot hang a caller', async () => {
    await against(
      () => {},
      async (guest) => {
        await expect(guest.health({ timeoutMs: 100 })).rejects.toMatchObject({ code: 'timeout' });
        await expect(guest.connect(80, { timeoutMs: 100 })).rejects.toMatchObject({ code: 'timeout' });
        const signal = AbortSignal.timeout(100);
        await expect(guest.exec({ command: 'true', signal })).rejects.toMatchObject({ code: 'cancelled' });
      },
    );
  });

  it('is reported with its own words, shortened', async () => {
    const body = JSON.stringify({ code: 'internal', message: 'm'.repeat(50_000) });
    await against(reply(body, 500), async (guest) => {
      const error = await guest.health().catch((thrown: Error) => thrown);
      expect(error).toMatchObject({ code: 'guest_error' });
      expect((error as Error).message.length).toBeLessThan(5_000);
    });
    await against(reply('<html>', 507), async (guest) => {
      await expect(guest.files.write('/x', 'y')).rejects.toMatchObject({ code: 'disk_full' });
    });
  });

  it.each([
    [
      'bytes that are not HTTP/2',
      (socket: Duplex) => socket.write('HTTP/1.1 200 OK\r\n\r\n'),
      /guest_protocol|vmm_exited/,
    ],
    ['the end', (socket: Duplex) => socket.end(), /vmm_exited/],
    ['nothing on a socket that broke', (_: Duplex, ours: Duplex) => ours.destroy(), /vmm_exited/],
  ])('that sends %s ends every pending call', async (_, misbehave, code) => {
    const [ours, theirs] = duplexPair();
    theirs.on('error', () => {});
    theirs.resume();
    const guest = connectGuest(ours);
    const calls = [guest.health({ timeoutMs: 4_000 }), guest.exec({ command: 'true' }), guest.metrics()];
    setTimeout(() => misbehave(theirs, ours), 20);
    for (const outcome of await Promise.allSettled(calls)) {
      expect(outcome.status).toBe('rejected');
      expect((outcome as PromiseRejectedResult).reason.code).toMatch(code);
    }
    guest.close();
  });
});

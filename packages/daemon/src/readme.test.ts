import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { fileURLToPath } from 'node:url';
import { leaks, NO_LEAKS } from '@forkd/controller';
import { expect, it } from 'vitest';
import { temporaryData } from './testing.js';

const REPOSITORY = fileURLToPath(new URL('../../..', import.meta.url));

it('the walk-through of the REST API in README.md works as it is written', async () => {
  const readme = readFileSync(`${REPOSITORY}/README.md`, 'utf8');
  const [, walk] = /as it stands here:\n\n```sh\n(.*?)```/s.exec(readme)!;
  const data = temporaryData();
  // Only where it listens and keeps its things is our own: a daemon may be running on this host.
  const script = walk!.replaceAll('8889', String(await freePort())).replaceAll('"$PWD/.forkd"', data);
  const shell = spawn('bash', ['-euo', 'pipefail', '-m', '-c', `${script}\nwait`], {
    cwd: REPOSITORY,
    env: { ...process.env, PATH: `${REPOSITORY}/bin:${process.env.PATH}` },
  });
  let output = '';
  for (const stream of [shell.stdout, shell.stderr])
    stream.on('data', (chunk) => {
      output += chunk;
    });
  const [code] = await once(shell, 'exit');
  expect([code, output]).toEqual([0, expect.stringContaining('[0.0, 0.0, 0.0, 0.0, 0.0]')]);
  for (const part of ['Linux sb-', '\nhello', '"kind":"sandbox"']) expect(output).toContain(part);
  expect(leaks(data)).toEqual(NO_LEAKS);
  rmSync(data, { recursive: true });
});

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  server.close();
  return port;
}

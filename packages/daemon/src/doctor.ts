import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { QemuEngine } from '@forkd/engine-qemu';
import { HostHelper, nativeBinary } from '@forkd/host';
import { buildInitramfs, buildKernel, type Kernel } from '@forkd/images';
import { asForkdError, ForkdError } from '@forkd/protocol';
import { type Host, runCheck } from './doctor/check.js';
import { CHECKS } from './doctor/checks.js';
import { asTable, report } from './doctor/report.js';
import { reachOf } from './reach.js';

const LOCAL_URL = 'http://127.0.0.1:8889';
const KNOWN = 'Known: --json --data DIR --daemon-url URL --socket PATH';

try {
  await main();
} catch (thrown) {
  const error = asForkdError(thrown);
  console.error(`error: ${error.message}\nhint: ${error.hint}`);
  process.exitCode = 2;
}

async function main(): Promise<void> {
  const { json, ...given } = readFlags(process.argv.slice(2), process.env);
  const scratch = await mkdtemp(`${tmpdir()}/forkd-doctor-`);
  const helper = HostHelper.start('', await reachOf(given.data, scratch));
  const images = `${given.data}/images`;
  const kernel = once(() => buildKernel({ store: images, onlyStored: true }));
  const engine = once(async () => {
    // Without a cache: a doctor looks again.
    const proof = await proofGuest(kernel, scratch);
    return new QemuEngine({ helper, scratch, ...(proof ? { proof } : {}) });
  });
  const probe = async () => (await engine()).probe();
  const userNetwork = async () => (await engine()).userNetwork();
  const host = { ...given, helper, scratch, kernel, probe, userNetwork };
  const results = report(await Promise.all(CHECKS.map((check) => runCheck(check, host))));
  await helper[Symbol.asyncDispose]();
  await rm(scratch, { recursive: true, force: true });
  const coloured = process.stdout.isTTY && !process.env.NO_COLOR;
  const text = json ? JSON.stringify(results) : asTable(results, coloured);
  // A check that was given up may still hang in the kernel: the program does not wait for it.
  process.stdout.write(`${text}\n`, () => process.exit(results.fail > 0 ? 1 : 0));
}

/** The initramfs is made anew in a moment; the kernel would have to be downloaded, which is not a doctor's business. */
async function proofGuest(kernel: () => Promise<Kernel>, scratch: string) {
  try {
    const built = await kernel();
    const { path: initramfs } = await buildInitramfs(built, nativeBinary('forkd-agent'), { store: scratch });
    return { kernel: built.path, initramfs };
  } catch {
    return undefined;
  }
}

function readFlags(
  argv: string[],
  env: NodeJS.ProcessEnv,
): Pick<Host, 'data' | 'daemons' | 'token'> & { json: boolean } {
  const text = { type: 'string' } as const;
  const options = { json: { type: 'boolean' }, data: text, 'daemon-url': text, socket: text } as const;
  try {
    const { values } = parseArgs({ args: argv, options });
    const data = resolve(values.data ?? env.FORKD_DATA ?? '/var/lib/forkd');
    const url = values['daemon-url'] ?? (values.socket === undefined ? env.FORKD_URL || undefined : undefined);
    if (url !== undefined && !/^https?:$/.test(new URL(url).protocol))
      throw new Error(`${url} is not an http or https URL`);
    const socket = values.socket ?? (env.FORKD_SOCKET || `${data}/forkd.sock`);
    // As the command line looks for one.
    const local = values.socket === undefined ? [{ socket }, { url: LOCAL_URL }] : [{ socket }];
    return {
      json: values.json ?? false,
      data,
      daemons: url === undefined ? local : [{ url }],
      token: env.FORKD_TOKEN || undefined,
    };
  } catch (cause) {
    throw new ForkdError('invalid_request', (cause as Error).message, { hint: KNOWN });
  }
}

function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined;
  return () => (made ??= make());
}

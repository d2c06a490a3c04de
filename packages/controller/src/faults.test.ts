import { readdirSync } from 'node:fs';
import type { Recipe } from '@forkd/images';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { CreateOptions } from './create-snapshot.js';
import { close, dataDirectory, openController, plainRecipe, until, vmms } from './testing.js';

const root = dataDirectory();
const limits = { timeout_secs: 60 };
let controller: Awaited<ReturnType<typeof openController>>;
beforeAll(async () => {
  controller = await openController(root);
});
afterAll(() => close(controller));

/** Every attempt uses the same tag: that it can still be had is part of leaving nothing. */
async function create(changes: Partial<Recipe>, options: Partial<CreateOptions> = {}): Promise<unknown> {
  const recipe = await plainRecipe(changes);
  return controller.createSnapshot({ tag: 'faulty', recipe, recipeName: 'faulty', ...options });
}

function nothingLeft(): void {
  expect(readdirSync(controller.data.own)).toEqual([]);
  expect(readdirSync(controller.data.snapshots)).toEqual([]);
  expect(vmms(controller)).toEqual([]);
}

describe('a snapshot that cannot be created', () => {
  afterEach(nothingLeft);

  it('because the guest never gets ready: the error says what was missing', async () => {
    const failed = {
      code: 'timeout',
      message: expect.stringMatching(/not ready within 2 s: .*ended with 1.*no luck/s),
    };
    const ready = { command: 'echo no luck >&2; false', timeout_secs: 2 };
    await expect(create({ ready })).rejects.toMatchObject(failed);
  });

  it('because what should show that it is ready never ends', async () => {
    const failed = { code: 'timeout', message: expect.stringMatching(/not ready within 1 s: its check did not end/) };
    await expect(create({ ready: { command: 'sleep 60', timeout_secs: 1 } })).rejects.toMatchObject(failed);
  });

  it('because nobody listens on the port', async () => {
    const failed = { code: 'timeout', message: expect.stringMatching(/not ready within 1 s: .*4711/) };
    await expect(create({ ready: { port: 4711, timeout_secs: 1 } })).rejects.toMatchObject(failed);
  });

  it('because the warm-up code raises: the error has its traceback', async () => {
    const failed = { code: 'warmup_failed', message: expect.stringMatching(/Traceback.*ValueError: on purpose/s) };
    const warmup = { kernel: 'python' as const, code: 'raise ValueError("on purpose")', ...limits };
    await expect(create({ warmup })).rejects.toMatchObject(failed);
  });

  it('because the warm-up code runs into its timeout', async () => {
    const failed = { code: 'warmup_failed', message: expect.stringMatching(/ran longer than 5000 ms/) };
    const warmup = { kernel: 'python' as const, code: '__import__("time").sleep(60)', timeout_secs: 5 };
    await expect(create({ warmup })).rejects.toMatchObject(failed);
  });

  it('because the warm-up command fails, cannot be run, or does not end', async () => {
    const commands: [string, RegExp][] = [
      ['echo why >&2; exit 3', /exit code 3\nwhy/],
      ['/no/such/program', /exit code 127\n.*\/no\/such\/program: not found/],
      ['kill -9 $$', /ended by SIGKILL/],
      ['sleep 60', /did not end within 1 s/],
    ];
    for (const [command, message] of commands) {
      const failed = { code: 'warmup_failed', message: expect.stringMatching(message) };
      await expect(create({ warmup: { command, timeout_secs: 1 } })).rejects.toMatchObject(failed);
    }
  });

  it('because the warm-up makes the guest panic: the error has the last words of the console', async () => {
    const failed = { code: 'vmm_exited', message: expect.stringMatching(/during its warm-up\n.*Kernel panic/s) };
    const warmup = { command: 'echo c > /proc/sysrq-trigger', ...limits };
    await expect(create({ warmup })).rejects.toMatchObject(failed);
  });

  it('because the warm-up switches the guest off', async () => {
    const warmup = { command: 'sync; echo b > /proc/sysrq-trigger', ...limits };
    await expect(create({ warmup })).rejects.toMatchObject({ code: 'vmm_exited' });
  });

  for (const step of ['boot', 'warm-up', 'zygote'])
    it(`because its VMM is killed at step ${step}`, async () => {
      const warmup = { command: 'sleep 2', ...limits };
      const settled = create(
        { warmup },
        {
          onProgress: async (progress) => {
            if (progress.step !== step) return;
            // At the step "zygote" the parent has ended, and the next VMM is the zygote.
            await until(() => vmms(controller).length > 0, 10_000);
            for (const pid of vmms(controller)) process.kill(pid, 'SIGKILL');
          },
        },
      );
      await expect(settled).rejects.toMatchObject({ code: 'vmm_exited' });
    });

  for (const [step, afterMs] of [
    ['images', 0],
    ['boot', 0],
    ['boot', 500],
    ['warm-up', 300],
    ['ready', 0],
    ['save', 0],
    ['save', 30],
    ['zygote', 0],
    ['zygote', 300],
  ] as const)
    it(`because its maker gives up ${afterMs} ms into step ${step}`, async () => {
      const abort = new AbortController();
      let since = 0;
      const giveUp = (): void => {
        since = performance.now();
        abort.abort();
      };
      const settled = create(
        { warmup: { command: 'sleep 1', ...limits }, ready: { command: 'sleep 0.2', ...limits } },
        {
          signal: abort.signal,
          onProgress: (progress) => {
            if (progress.step === step) setTimeout(giveUp, afterMs);
          },
        },
      );
      await expect(settled).rejects.toMatchObject({ code: 'cancelled', name: 'ForkdError' });
      expect(performance.now() - since).toBeLessThan(1500);
    });
});

it('after all that, the tag can be had, and only once at a time', async () => {
  const [first, second] = await Promise.allSettled([create({}), create({})]);
  expect([first.status, second.status].sort()).toEqual(['fulfilled', 'rejected']);
  const refused = [first, second].find(({ status }) => status === 'rejected');
  expect(refused).toMatchObject({ reason: { code: 'state_conflict' } });
  const results = await controller.spawn({ tag: 'faulty', n: 2 });
  expect(results.map(({ ok }) => ok)).toEqual([true, true]);
});

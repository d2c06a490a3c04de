import { mkdir, writeFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { cpuMs, snapshotFiles } from '@forkd/controller';
import { fanOut } from './fan-out.js';
import { floor } from './floor.js';
import { peers } from './peers.js';
import { memoryUse } from './process-memory.js';
import { endProgress, showProgress } from './progress-line.js';
import { resultsDirectory } from './results.js';
import { inSession, withParent } from './session.js';
import { mean, rounded } from './statistics.js';

const IDLE_SETTLE_MS = 3_000;
const IDLE_WINDOW_MS = 10_000;
/** Without a zygote children are slow to start on an emulated CPU; as many as show the difference. */
const FROM_FILES = 10;

await inSession(async (session) => {
  const { n, width: asked } = session.args;
  const width = asked || availableParallelism() + 1;
  await withParent(session, async (warmed) => {
    endProgress();
    const { controller, signal } = session;
    const from = snapshotFiles(`${controller.data.snapshots}/${warmed.tag}`);

    const own = process.cpuUsage();
    const fan = await fanOut(session, warmed, n, width);
    const { user, system } = process.cpuUsage(own);
    const pids = fan.sandboxes.map(({ vm }) => vm.pid);
    const cpu = pids.map(cpuMs);
    const memory = pids.map(memoryUse);

    showProgress({ step: 'idle', detail: `watching ${pids.length} idle children` });
    await pause(IDLE_SETTLE_MS, signal);
    const before = pids.map(cpuMs);
    const since = performance.now();
    await pause(IDLE_WINDOW_MS, signal);
    const seconds = (performance.now() - since) / 1000;
    const idle = pids.map((pid, index) => (cpuMs(pid) - before[index]!) / seconds);
    for (const sandbox of fan.sandboxes) await sandbox.kill();

    showProgress({ step: 'floor', detail: 'the bare engine' });
    const { fastest, saved } = await controller.sourcesOf(warmed.tag);
    const { wallMs: floorMs } = await floor(session, fastest, warmed, n, width);
    showProgress({ step: 'files', detail: 'children restored from the files of the snapshot' });
    const files = await floor(session, saved, warmed, Math.min(n, FROM_FILES), width);
    showProgress({ step: 'peers', detail: 'runc, bubblewrap, gVisor' });
    const peerMs = await peers(from.base, `${controller.data.own}/peers`, warmed.language, n, width);
    endProgress();

    const { machine } = await controller.snapshot(warmed.tag);
    const summary = {
      n,
      ok: fan.samples.length,
      engine: controller.engine.kind,
      accel: machine.accel,
      vcpus: machine.vcpus,
      wall_ms: rounded(fan.wallMs),
      floor_ms: rounded(floorMs),
      runc_ms: orNull(peerMs.runc),
      bwrap_ms: orNull(peerMs.bwrap),
      gvisor_ms: orNull(peerMs.gvisor),
      pss_mib_per_child: rounded(mean(memory.map((m) => m.pssMib)), 2),
      guest_private_mib_per_child: rounded(mean(memory.map((m) => m.guestPrivateMib)), 2),
      emulator_private_mib_per_child: rounded(mean(memory.map((m) => m.emulatorPrivateMib)), 2),
      from_files_ms_per_child: rounded(files.wallMs / Math.min(n, FROM_FILES)),
      from_files_emulator_private_mib: rounded(files.emulatorPrivateMib, 2),
      cpu_ms_per_child: rounded(mean(cpu)),
      controller_cpu_ms_per_child: rounded((user + system) / 1000 / n),
      idle_cpu_ms_per_s: rounded(mean(idle), 2),
    };
    await mkdir(resultsDirectory(), { recursive: true });
    const raw = {
      summary,
      width,
      samples: fan.samples,
      cpu,
      memory,
      idle,
      failures: fan.failures.map((e) => e.message),
    };
    await writeFile(join(resultsDirectory(), `fanout-${session.name}-${n}-${Date.now()}.json`), JSON.stringify(raw));
    for (const failure of fan.failures.slice(0, 3)) console.error(`failed: ${failure.message}`);
    console.log(JSON.stringify(summary));
    if (fan.samples.length < n) process.exitCode = 1;
  });
});

function orNull(value: number | null): number | null {
  return value === null ? null : rounded(value);
}

async function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, milliseconds));
  signal.throwIfAborted();
}

import type { Command } from './command.js';
import { bench } from './commands/bench.js';
import { cleanup } from './commands/cleanup.js';
import { completion } from './commands/completion.js';
import { serialConsole } from './commands/console.js';
import { cp } from './commands/cp.js';
import { diff } from './commands/diff.js';
import { doctor } from './commands/doctor.js';
import { evaluate } from './commands/eval.js';
import { events } from './commands/events.js';
import { exec } from './commands/exec.js';
import { fork } from './commands/fork.js';
import { gc } from './commands/gc.js';
import { images } from './commands/images.js';
import { kill } from './commands/kill.js';
import { lineage } from './commands/lineage.js';
import { logs } from './commands/logs.js';
import { ls } from './commands/ls.js';
import { network } from './commands/network.js';
import { pause, resume } from './commands/pause-resume.js';
import { ping } from './commands/ping.js';
import { portForward } from './commands/port-forward.js';
import { ports } from './commands/ports.js';
import { promote } from './commands/promote.js';
import { quickstart } from './commands/quickstart.js';
import { recipes } from './commands/recipes.js';
import { retain } from './commands/retain.js';
import { rmi } from './commands/rmi.js';
import { rollback } from './commands/rollback.js';
import { run } from './commands/run.js';
import { serve } from './commands/serve.js';
import { share } from './commands/share.js';
import { shell } from './commands/shell.js';
import { snapshot } from './commands/snapshot.js';
import { snapshotCompact } from './commands/snapshot-compact.js';
import { snapshotDiff } from './commands/snapshot-diff.js';
import { snapshotInfo } from './commands/snapshot-info.js';
import { spawn } from './commands/spawn.js';
import { stop } from './commands/stop.js';
import { version } from './commands/version.js';
import { wait } from './commands/wait.js';
import { where } from './commands/where.js';
import { workspaces } from './commands/workspace.js';

/** Every verb, in the order help shows them. */
export const COMMANDS: readonly Command[] = [
  ...[quickstart, doctor, run, shell],
  ...[
    snapshot,
    wait,
    images,
    snapshotInfo,
    rmi,
    recipes,
    lineage,
    diff,
    snapshotDiff,
    snapshotCompact,
    retain,
    share,
    gc,
  ],
  ...[
    spawn,
    fork,
    ls,
    kill,
    exec,
    evaluate,
    ping,
    pause,
    resume,
    rollback,
    promote,
    network,
    cp,
    ports,
    portForward,
    serialConsole,
    ...workspaces,
  ],
  ...[serve, stop, version, where, events, logs, cleanup, bench, completion(() => COMMANDS)],
];
